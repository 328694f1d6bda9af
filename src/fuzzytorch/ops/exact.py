"""Operations without rounding: stock torch runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from fuzzytorch.table import Row, Verdict, dispatched

_GROUPS: Final[Mapping[str, str]] = {
    "a constructor: the values are given, not computed": """
        empty empty_like empty_permuted empty_strided eye fill fill_ full full_like
        new_empty new_empty_strided new_full new_ones new_zeros ones ones_like
        scalar_tensor tril_indices triu_indices zero zero_ zeros zeros_like
        _efficientzerotensor complex
    """,
    "a grid or a window: kept as stock gives it, so that programs meet the points they expect": """
        arange range linspace logspace bartlett_window blackman_window hamming_window hann_window
        kaiser_window fft_fftfreq fft_rfftfreq _histogramdd_bin_edges
    """,
    "movement: elements are copied": """
        _local_scalar_dense _pack_padded_sequence _pin_memory _reshape_copy
        _stack _to_dense _unsafe_index _unsafe_masked_index _unsafe_view block_diag cat
        channel_shuffle clone constant_pad_nd diag_embed diagonal_backward diagonal_scatter
        embedding expand_copy flip gather im2col index index_fill index_select lift lift_fresh
        lift_fresh_copy masked_fill masked_scatter masked_select native_channel_shuffle
        permute_copy pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d
        reflection_pad3d repeat repeat_interleave replication_pad1d replication_pad2d
        replication_pad3d resize resize_ resize_as_ roll rot90 select_backward select_copy
        select_scatter set_ slice_backward slice_copy slice_scatter split_copy
        split_with_sizes_copy squeeze_copy stack t_copy take transpose_copy tril triu
        unbind_copy unfold_copy unsafe_split unsafe_split_with_sizes unsqueeze_copy
        upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
        _upsample_nearest_exact2d _upsample_nearest_exact3d view_as_complex_copy
        view_as_real_copy view_copy where index_copy as_strided_copy as_strided_scatter
        alias_copy detach_copy diagonal_copy narrow_copy detach_ squeeze_ unsqueeze_ t_
        transpose_ as_strided_ swapaxes_ swapdims_ _resize_output_ _copy_from
        _copy_from_and_resize max_unpool2d max_unpool3d scatter.src scatter.value scatter.src_out
        scatter.value_out _lazy_clone _reshape_alias_copy values_copy _values_copy _conj_copy
        _neg_view_copy set fill_diagonal_ _nested_view_from_buffer_copy to_dense lu_unpack
        masked_scatter_backward to_padded_tensor _to_sparse _to_sparse_csr _to_sparse_csc
        _to_sparse_bsr _to_sparse_bsc _sparse_coo_tensor_with_dims_and_tensors sparse_mask
        _nested_tensor_from_mask _nested_tensor_from_tensor_list _sparse_sum_backward
    """,
    "selection: every result is one of the operands": """
        amax aminmax amin clamp clamp_max clamp_min cummax cummin _cummax_helper _cummin_helper
        fmax fmin hardshrink hardtanh hardtanh_backward kthvalue max max_pool2d_with_indices
        max_pool3d_with_indices maximum median min minimum mode nan_to_num nanmedian relu relu_
        sort threshold threshold_backward topk adaptive_max_pool2d adaptive_max_pool3d
        fractional_max_pool2d fractional_max_pool3d _aminmax hardshrink_backward
        unique_consecutive unique_dim unique_dim_consecutive _unique _unique2
        softshrink_backward mkldnn_max_pool2d mkldnn_max_pool3d
    """,
    "the result of the operation is always a number of the format": """
        _conj_physical abs ceil copysign floor fmod frac frexp heaviside neg nextafter
        round.default sgn sign trunc
    """,
    "a constant that depends on the sign alone": "angle",
    "a comparison or a count: it reads values and is never perturbed": """
        _is_all_true _is_any_true all allclose any argmax argmin bucketize count_nonzero eq equal
        ge gt histc isclose isin isinf isnan isneginf isposinf le logical_and logical_not
        logical_or logical_xor lt ne nonzero nonzero_static searchsorted signbit
        _assert_async _functional_assert_async _assert_tensor_metadata is_same_size is_set_to
        _has_same_storage_numel hash_tensor
    """,
    "one copy or fill per tensor of the list": """
        _foreach_zero _foreach_zero_ _foreach_abs _foreach_abs_ _foreach_neg _foreach_neg_
        _foreach_sign _foreach_sign_ _foreach_ceil _foreach_ceil_ _foreach_floor _foreach_floor_
        _foreach_round _foreach_round_ _foreach_trunc _foreach_trunc_ _foreach_frac
        _foreach_frac_ _foreach_clone _foreach_max _foreach_maximum _foreach_maximum_
        _foreach_minimum _foreach_minimum_ _foreach_clamp_max _foreach_clamp_max_
        _foreach_clamp_min _foreach_clamp_min_
    """,
}


def exact_rows(groups: Mapping[str, str]) -> tuple[Row, ...]:
    """Rows for operations (every overload) or single overloads, grouped by why they are exact."""
    rows = []
    for why, names in groups.items():
        for name in names.split():
            rows += [Row(f"aten.{o}", Verdict.EXACT, None, why) for o in _overloads(name)]
    return tuple(rows)


def _overloads(name: str) -> list[str]:
    if "." in name:
        return [name]
    packet = getattr(torch.ops.aten, name, None)
    return [f"{name}.{o}" for o in (["default"] if packet is None else dispatched(packet))]


def schema_row(overload: Any) -> Row | None:
    """The row of an overload that its schema alone shows to be exact, or ``None``.

    Views are, and what returns no tensor and writes none.  Composite ones are left to
    their decomposition: ``to`` may convert.
    """
    if overload.namespace != "aten" or overload._can_decompose():
        return None
    schema = overload._schema
    if overload.is_view:
        why = "a view, by the schema: no element is touched"
    elif not schema.is_mutable and not any("Tensor" in str(r.type) for r in schema.returns):
        why = "it asks a question and returns no tensor, by the schema"
    else:
        return None
    return Row(str(overload), Verdict.EXACT, None, why)


ROWS = exact_rows(_GROUPS)
