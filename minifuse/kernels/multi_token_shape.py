"""Chooses tiles, warps and stages of a multi-token launch, by lengths and heads."""

from __future__ import annotations

import triton

from minifuse.kernels.launch import Form

REFERENCE = 16, 16, 4, 1  # one tile for every length: the boundaries of tiles are part of the result's bits


def form_of(
    group: int,
    head_dim: int,
    page: int,
    max_queries: int,
    *,
    has_first: bool = False,
    itemsize: int = 2,
    reference: bool = False,
) -> Form:
    """Choose the kernel's constants, warps and stages."""
    padded = max(16, int(triton.next_power_of_2(head_dim)))
    if reference:
        block_m, block_n, num_warps, num_stages = REFERENCE
    else:
        block_m, block_n, num_warps, num_stages = _config(group * max_queries, padded, itemsize, page)
    return {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "HEAD_DIM_PADDED": padded,
        "PAGE": page,
        "HAS_FIRST": has_first,
        "IN_ORDER": reference,
        "BLOCK_M": max(block_m, int(triton.next_power_of_2(group))),
        "BLOCK_N": block_n,
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


def packed_form_of(group: int, head_dim: int, page: int, max_queries: int, *, itemsize: int = 2) -> Form:
    """Choose the form for lanes, which hold long prompts and single tokens.

    A lane needs the registers of its longest piece. With 64 rows and 4 warps, two programs fit on an SM, so that one
    computes while the other reads; 128 rows need 8 warps. At head_dim 128, tiles of 64 tokens spill on sm_90.
    """
    form = form_of(group, head_dim, page, max_queries, itemsize=itemsize)
    del form["HAS_FIRST"], form["IN_ORDER"]
    if form["BLOCK_M"] > 64 >= group:
        form |= {"BLOCK_M": 64, "num_warps": 4}
        if form["HEAD_DIM_PADDED"] > 64:
            form["BLOCK_N"] = 32
    return form


def _config(max_rows: int, head_dim_padded: int, itemsize: int, page: int) -> tuple[int, int, int, int]:
    """Choose BLOCK_M, BLOCK_N, warps and stages for sequences of at most `max_rows` rows.

    These choices are derived from the forms compiled ahead of time, not measured:

    - Up to 16 rows (decode): a tile has 16 rows, the fewest that a tensor core takes. The work is reading KV, and
      three programs fit on an SM.
    - More rows (chunks): at half of the peak speed, 128 rows read 16 bytes per clock and SM from the L2; 64 rows would
      read 32, and the L2 delivers about 24. 8 warps are two warp groups: one multiplies while the other takes its
      softmax. Tiles of 64 tokens take 183 registers at head_dim 128 (sm_80: 227), tiles of 128 tokens spill on sm_80;
      at head_dim 64 two programs fit.
    - A decode in the large tile of a chunk wastes multiplications, but reading KV takes longer than these.
    - A head_dim above 128 halves the tile, to fit shared memory and registers.
    - Float32 is not for speed: tiles of 32 by 16 are the largest that spill nothing on either target at head_dim 128.

    Stages: three tiles in flight, because on Hopper a copy that is waited for one tile later overlaps with nothing.
    With blocks, a tile takes two dependent loads (the table, then KV), and the same overlap takes five stages.
    """
    num_stages = 5 if page else 3
    small = head_dim_padded > 128
    if itemsize > 2:
        return 16 if small or max_rows <= 16 else 32, 16, 4, 3
    if max_rows <= 16:
        return 16, 32 if small else 64, 4, num_stages
    return 64 if small else 128, 32 if small else 64, 8, num_stages
