"""Triton kernels as people write them: each loads and stores what its arguments describe, no more.

The last one has a planted defect, which the checks have to report.
"""

import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, y, columns, BLOCK: tl.constexpr):
    """One program a row, which fits a block."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=float("-inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row * columns + at, value / tl.sum(value, axis=0), mask=inside)


@triton.jit
def softmax_online(x, y, columns, BLOCK: tl.constexpr):
    """Rows longer than a block: maximum and sum in one pass, the quotients in a second."""
    row = tl.program_id(0)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * columns + at, mask=at < columns, other=-1e30)
        larger = tl.maximum(largest, value)
        total = total * tl.exp(largest - larger) + tl.exp(value - larger)
        largest = larger
    most = tl.max(largest, axis=0)
    total_of_row = tl.sum(total * tl.exp(largest - most), axis=0)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * columns + at, mask=at < columns)
        tl.store(y + row * columns + at, tl.exp(value - most) / total_of_row, mask=at < columns)


@triton.jit
def layer_norm(x, weight, bias, y, means, factors, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=0) / columns
    centred = tl.where(inside, value - mean, 0.0)
    factor = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + epsilon)
    tl.store(means + row, mean)
    tl.store(factors + row, factor)
    result = centred * factor * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
    tl.store(y + row * columns + at, result, mask=inside)


@triton.jit
def layer_norm_weights(dy, x, means, factors, dweight, dbias, locks, rows, columns,
                       GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """Partial gradients: programs of one group add to one row of sums under a lock."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    grad = tl.load(dy + row * columns + at, mask=inside, other=0.0)
    value = tl.load(x + row * columns + at, mask=inside, other=0.0)
    normal = (value - tl.load(means + row)) * tl.load(factors + row)
    group = row % GROUPS
    lock = locks + group
    count = locks + GROUPS + group
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    first = tl.load(count) == 0
    sum_w = grad * normal
    sum_b = grad
    if first:
        tl.atomic_xchg(count, 1)
    else:
        sum_w += tl.load(dweight + group * columns + at, mask=inside)
        sum_b += tl.load(dbias + group * columns + at, mask=inside)
    tl.store(dweight + group * columns + at, sum_w, mask=inside)
    tl.store(dbias + group * columns + at, sum_b, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def reductions(x, sums, maxima, where, alls, count, BLOCK: tl.constexpr):
    """Several reductions of one block, and the total by an atomic."""
    program = tl.program_id(0)
    at = program * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside, other=float("-inf"))
    most, index = tl.max(value, axis=0, return_indices=True)
    tl.store(maxima + program, most)
    tl.store(where + program, program * BLOCK + index)
    part = tl.sum(tl.where(inside, value, 0.0), axis=0)
    tl.store(sums + program, part)
    tl.atomic_add(alls, part)


@triton.jit
def reduced_columns(x, y, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums down a matrix: a reduction over the axis that threads do not lie along."""
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (at[None, :] < columns)
        total += tl.load(x + row[:, None] * columns + at[None, :], mask=inside, other=0.0)
    tl.store(y + at, tl.sum(total, axis=0), mask=at < columns)


@triton.jit
def last_block_sum(x, parts, arrived, y, count, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """The program that arrives last adds up what the others have stored."""
    program = tl.program_id(0)
    at = program * BLOCK + tl.arange(0, BLOCK)
    tl.store(parts + program, tl.sum(tl.load(x + at, mask=at < count, other=0.0), axis=0))
    tl.debug_barrier()
    if tl.atomic_add(arrived, 1, sem="acq_rel") == PROGRAMS - 1:
        each = tl.arange(0, PROGRAMS)
        tl.store(y, tl.sum(tl.load(parts + each, volatile=True), axis=0))


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def recurrence(gate_a, value_a, gate_b, value_b):
    return gate_a * gate_b, value_a * gate_b + value_b


@triton.jit
def scans(x, gates, sums, products, states, columns, BLOCK: tl.constexpr):
    """Sums, products, and a linear recurrence of two values."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0)
    gate = tl.load(gates + row * columns + at, mask=inside, other=1.0)
    tl.store(sums + row * columns + at, tl.associative_scan(value, 0, add), mask=inside)
    tl.store(products + row * columns + at, tl.cumprod(gate, axis=0), mask=inside)
    _, state = tl.associative_scan((gate, value), 0, recurrence)
    tl.store(states + row * columns + at, state, mask=inside)


@triton.jit
def sorted_rows(x, y, flipped, BLOCK: tl.constexpr, DESCENDING: tl.constexpr):
    row = tl.program_id(0)
    at = row * BLOCK + tl.arange(0, BLOCK)
    value = tl.sort(tl.load(x + at), descending=DESCENDING)
    tl.store(y + at, value)
    tl.store(flipped + at, tl.flip(value))


@triton.jit
def largest(x, y, columns, BLOCK: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=float("-inf"))
    tl.store(y + row * K + tl.arange(0, K), tl.topk(value, K))


@triton.jit
def histogram(x, bins, count, BLOCK: tl.constexpr, BINS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count, other=0)
    found = tl.histogram(value, BINS, mask=at < count)
    tl.atomic_add(bins + tl.arange(0, BINS), found, sem="relaxed")


@triton.jit
def transposed(x, y, rows, columns, TILE: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    tile = tl.load(x + row[:, None] * columns + column[None, :], mask=inside)
    tl.store(y + column[:, None] * rows + row[None, :], tl.trans(tile), mask=tl.trans(inside))


@triton.jit
def matmul(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr):
    """Tiles in groups of rows, loads pipelined by asynchronous copies, an activation at the end."""
    program = tl.program_id(0)
    across = tl.cdiv(n, N)
    group = program // (GROUP * across)
    height = min(tl.cdiv(m, M) - group * GROUP, GROUP)
    inner = program % (GROUP * across)
    row = (group * GROUP + inner % height) * M + tl.arange(0, M)
    column = (inner // height) * N + tl.arange(0, N)
    step = tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        left = (row[:, None] < m) & (start + step[None, :] < k)
        right = (start + step[:, None] < k) & (column[None, :] < n)
        total = tl.dot(
            tl.load(a + row[:, None] * k + start + step[None, :], mask=left, other=0.0),
            tl.load(b + (start + step[:, None]) * n + column[None, :], mask=right, other=0.0),
            total,
        )
    total = tl.where(total >= 0, total, 0.01 * total)
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(c + row[:, None] * n + column[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def matmul_split(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SPLIT: tl.constexpr):
    """The inner dimension in parts, one a program, added up by atomics."""
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    step = tl.program_id(2) * K + tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K * SPLIT):
        at = start + step
        left = tl.load(a + row[:, None] * k + at[None, :], mask=at[None, :] < k, other=0.0)
        right = tl.load(b + at[:, None] * n + column[None, :], mask=at[:, None] < k, other=0.0)
        total = tl.dot(left, right, total)
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.atomic_add(c + row[:, None] * n + column[None, :], total, mask=inside)


@triton.jit
def attention(q, k, v, out, sums, length, scale, HEAD: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
              CAUSAL: tl.constexpr):
    """Flash attention: one program a block of queries, keys and values streamed past it."""
    first = tl.program_id(0) * M
    head = tl.program_id(1) * length * HEAD
    row = first + tl.arange(0, M)
    lane = tl.arange(0, HEAD)
    queries = tl.load(q + head + row[:, None] * HEAD + lane[None, :], mask=row[:, None] < length, other=0.0)
    most = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, HEAD), tl.float32)
    last = tl.minimum(first + M, length) if CAUSAL else length
    for start in range(0, last, N):
        column = start + tl.arange(0, N)
        inside = column < length
        keys = tl.load(k + head + column[None, :] * HEAD + lane[:, None], mask=inside[None, :], other=0.0)
        score = tl.dot(queries, keys) * (scale * 1.44269504)
        seen = inside[None, :]
        if CAUSAL:
            seen = seen & (column[None, :] <= row[:, None])
        score = tl.where(seen, score, float("-inf"))
        larger = tl.maximum(most, tl.max(score, axis=1))
        weight = tl.math.exp2(score - larger[:, None])
        shrink = tl.math.exp2(most - larger)
        total = total * shrink + tl.sum(weight, axis=1)
        values = tl.load(v + head + column[:, None] * HEAD + lane[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(weight.to(v.dtype.element_ty), values, acc * shrink[:, None])
        most = larger
    tl.store(sums + tl.program_id(1) * length + row, most + tl.math.log2(total), mask=row < length)
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + head + row[:, None] * HEAD + lane[None, :], result, mask=row[:, None] < length)


@triton.jit
def gathered(table, rows, y, columns, BLOCK: tl.constexpr):
    """Rows of a table, as an embedding reads them."""
    program = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    row = tl.load(rows + program)
    tl.store(y + program * columns + at, tl.load(table + row * columns + at, mask=at < columns), mask=at < columns)


@triton.jit
def dropout(x, y, count, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.rand(seed, at) > p
    value = tl.load(x + at, mask=at < count)
    tl.store(y + at, tl.where(kept, value / (1 - p), 0.0), mask=at < count)


@triton.jit
def scaled_without_a_mask(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < count, other=0.0) * 2)
