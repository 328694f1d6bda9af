"""Random fills: stock torch runs, so that its generators give the same numbers in every mode."""

from __future__ import annotations

from typing import Final

from fuzzytorch.ops.exact import exact_rows

_FILLS: Final = """
    bernoulli bernoulli_ binomial cauchy cauchy_ exponential exponential_ geometric geometric_
    log_normal log_normal_ multinomial normal normal_ normal_functional poisson rand rand_like
    randint randint_like randn randn_like random random_ randperm uniform uniform_
    _sample_dirichlet _standard_gamma _philox_normal _philox_normal_ _philox_uniform
    _philox_uniform_ _philox_key_split _philox_key_fold_in
"""

ROWS = exact_rows({"a random fill: the numbers are those of stock torch": _FILLS})
