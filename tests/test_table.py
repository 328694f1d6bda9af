"""Laws of the table: what may stand in it, and how everything else follows from it."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from fuzzytorch.lookup import other_row, resolve, table
from fuzzytorch.ops.variants import variant_of
from fuzzytorch.table import Row, Table, Verdict, dispatched

aten = torch.ops.aten


def overloads(packet):
    return [getattr(packet, name) for name in dispatched(packet)]


@functools.cache
def aten_overloads():
    names = (n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
    packets = sorted({n[6:].partition(".")[0] for n in names})
    return [o for p in packets if hasattr(aten, p) for o in overloads(getattr(aten, p))]


def rounded_rows():
    rows = [row for row in table() if row.verdict is Verdict.ROUNDED]
    assert rows
    return rows


def nothing(call, *args, **kwargs):
    raise AssertionError("this row is never run")


ADD = Row("aten.add.Tensor", Verdict.ROUNDED, nothing, "one rounding")


def test_two_rows_for_one_overload_are_an_error_that_names_both_families():
    with pytest.raises(ValueError, match=r"aten\.add\.Tensor.*'here'.*'there'"):
        Table({"here": (ADD,), "there": (ADD,)})


@pytest.mark.parametrize("name", ["aten.ad.Tensor", "aten.add.Tensors"])
def test_a_row_for_an_overload_that_torch_does_not_have_is_an_error(name):
    with pytest.raises(ValueError, match=f"{name}, which torch"):
        Table({"here": (Row(name, Verdict.ROUNDED, nothing, "one rounding"),)})


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.EXCLUDED])
def test_a_row_has_a_function_unless_stock_torch_runs(verdict):
    stock = verdict in (Verdict.EXACT, Verdict.UNCOVERED)
    with pytest.raises(ValueError, match="function"):
        Row("aten.add.Tensor", verdict, nothing if stock else None, "why")


@pytest.mark.parametrize("function", [None, nothing])
def test_a_row_is_never_excluded(function):
    with pytest.raises(ValueError, match="only calls can be"):
        Row("aten.add.Tensor", Verdict.EXCLUDED, function, "why")


def test_a_row_stands_for_known_operands():
    with pytest.raises(ValueError, match=r"aten\.add\.Tensor is for 'quaternion'"):
        Row("aten.add.Tensor", Verdict.ROUNDED, nothing, "why", operands="quaternion")


def test_an_overload_may_have_one_row_for_each_kind_of_operands():
    other = dataclasses.replace(ADD, operands="complex")
    both = Table({"here": (ADD,), "there": (other,)})
    assert both.get("aten.add.Tensor") is ADD
    assert both.get("aten.add.Tensor", "complex") is other
    assert both.get("aten.add.Tensor", "sparse") is None
    assert (both.family(ADD), both.family(other)) == ("here", "there")


def test_complex_operands_without_a_row_are_computed_in_binary64():
    for func in (aten.convolution.default, aten.convolution.out, aten.linalg_eig.default):
        assert other_row(func, "complex").verdict is Verdict.COARSE
    assert other_row(aten.view.default, "complex") is None
    assert other_row(aten.convolution.default, "sparse") is None


def test_a_table_cannot_be_changed():
    frozen = Table({"here": (ADD,)})
    with pytest.raises(TypeError):
        frozen._rows["aten.mul.Tensor", "real"] = ADD  # type: ignore[index]


def test_every_row_says_why_in_one_line():
    assert all(row.why and "\n" not in row.why for row in table())


def test_every_aten_overload_has_a_verdict():
    known = aten_overloads()
    assert len(known) > 3000
    for overload in known:
        row = resolve(overload)
        assert row.name == str(overload)
        assert isinstance(row.verdict, Verdict)


def test_a_written_row_goes_before_everything_else():
    for row in table():
        namespace, operation, overload = row.name.split(".")
        func = getattr(getattr(getattr(torch.ops, namespace), operation), overload)
        assert found(func, row.operands) is row


def found(func, operands):
    return resolve(func) if operands == "real" else other_row(func, operands)


@pytest.mark.parametrize("row", rounded_rows(), ids=lambda row: f"{row.name}-{row.operands}")
def test_what_writes_the_result_of_a_rounded_row_is_rounded(row):
    _, operation, overload = row.name.split(".")
    packets = [getattr(aten, n, None) for n in (operation, f"{operation}_")]
    base = getattr(packets[0], overload)
    for func in (o for p in packets if p is not None for o in overloads(p)):
        variant = variant_of(func)
        if variant is not None and variant.base is base:
            assert found(func, row.operands).verdict is Verdict.ROUNDED, func


def test_a_variant_takes_the_arguments_of_its_base_and_the_tensors_it_writes():
    derived = [(o, variant_of(o)) for o in aten_overloads() if variant_of(o) is not None]
    assert derived
    for func, variant in derived:
        names = [a.name for a in func._schema.arguments if a.name not in variant.outs]
        assert names == [a.name for a in variant.base._schema.arguments]
        assert not variant.base._schema.is_mutable


def test_nearly_every_overload_that_writes_a_tensor_is_derived_or_rewritten():
    """What remains writes something that no functional overload computes."""
    writing = [o for o in aten_overloads() if o._schema.is_mutable]
    left = [o for o in writing if resolve(o).verdict is Verdict.UNCOVERED]
    assert len(left) < 0.05 * len(writing), left


@pytest.mark.parametrize(
    ("overload", "verdict"),
    [
        (aten.view.default, Verdict.EXACT),  # a view, by the schema
        (aten.is_coalesced.default, Verdict.EXACT),  # a question, by the schema
        (aten.conv2d.default, Verdict.LOWERED),  # composed by torch
        (aten._foreach_add_.List, Verdict.LOWERED),  # per tensor
        (aten.smooth_l1_loss.default, Verdict.LOWERED),  # registered decomposition
        (aten.linalg_eig.default, Verdict.COARSE),
        (aten.linalg_eig.out, Verdict.COARSE),  # derived from a coarse base
        (aten._fused_dropout.default, Verdict.UNCOVERED),  # binary64 would draw other numbers
    ],
    ids=str,
)
def test_without_a_row_the_strongest_claim_that_holds_is_found(overload, verdict):
    assert table().get(str(overload)) is None
    assert resolve(overload).verdict is verdict


def test_no_operation_that_draws_random_numbers_is_computed_in_another_dtype():
    seeded = [o for o in aten_overloads() if torch.Tag.nondeterministic_seeded in o.tags]
    assert seeded
    assert not [str(o) for o in seeded if resolve(o).verdict is Verdict.COARSE]
