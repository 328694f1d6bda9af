"""The census: PyTorch's own database of operations under the laws of the modes.

Every sample of every entry, in every dtype that rows compute in, forward and backward.
``python -m census`` runs all of it in worker processes; ``tests/test_census.py`` runs a
deterministic choice of the samples under the same laws.
"""

from __future__ import annotations
