// c = a b' on tensor cores: a (m, k), b (n, k) in bfloat16, c (m, n) in single precision, of any shape whose inner
// extent is a multiple of 8. A block of 4 warps makes a tile of 64 by 64; each warp a quarter of it.
// Reference: src/reference/linear.rs, a linear layer whose weights lie by outputs.
//
//        n                 Tiles of a and b are copied to shared memory two steps deep: while one is multiplied,
//      +----+----+         the next is on its way. Rows are padded by 16 bytes, so that the 8 rows of a matrix lie
//    m | w0 | w1 |         in different banks.
//      +----+----+
//      | w2 | w3 |
//      +----+----+

#include "common.cuh"

#if __CUDA_ARCH__ >= 800

#define TILE 64
#define DEPTH 32
#ifdef BUG_BANK_CONFLICTS
#define STRIDE DEPTH
#else
#define STRIDE (DEPTH + 8)
#endif

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Copies 16 bytes, or writes zeros if `there` is false.
__device__ __forceinline__ void copy16(u16 *to, const bf16 *from, bool there) {
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void load_matrices(u32 (&r)[4], const u16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rows `first` to `first + TILE` and columns `k0` to `k0 + DEPTH` of a matrix (rows, k), zeros beyond its ends.
__device__ __forceinline__ void copy_tile(u16 *to, const bf16 *from, int first, int rows, int k0, int k) {
#pragma unroll
    for (int i = 0; i < TILE * DEPTH / 8 / 128; ++i) {
        int piece = threadIdx.x + i * 128, row = piece / (DEPTH / 8), column = piece % (DEPTH / 8) * 8;
        bool there = first + row < rows && k0 + column < k;
        const bf16 *source = there ? from + (u64)(first + row) * k + k0 + column : from;
        copy16(to + row * STRIDE + column, source, there);
    }
}

KERNEL(128) product_bf16(const bf16 *a, const bf16 *b, float *c, int m, int n, int k) {
    __shared__ __align__(16) u16 tile_a[2][TILE * STRIDE];
    __shared__ __align__(16) u16 tile_b[2][TILE * STRIDE];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    int warp_row = warp / 2 * 32, warp_column = warp % 2 * 32;
    float sums[2][4][4] = {};
    int steps = (k + DEPTH - 1) / DEPTH;
    auto begin = [&](int step) {
        copy_tile(tile_a[step % 2], a, first_row, m, step * DEPTH, k);
        copy_tile(tile_b[step % 2], b, first_column, n, step * DEPTH, k);
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    begin(0);
    for (int step = 0; step < steps; ++step) {
        if (step + 1 < steps) {
            begin(step + 1);
#ifndef BUG_NO_WAIT
            asm volatile("cp.async.wait_group 1;" ::: "memory");
#endif
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        __syncthreads();
        const u16 *sa = tile_a[step % 2], *sb = tile_b[step % 2];
#pragma unroll
        for (int inner = 0; inner < DEPTH; inner += 16) {
            u32 fa[2][4], fb[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i)
                load_matrices(fa[i], &sa[(warp_row + i * 16 + lane % 16) * STRIDE + inner + lane / 16 * 8]);
#pragma unroll
            for (int j = 0; j < 2; ++j)
                load_matrices(fb[j], &sb[(warp_column + j * 16 + lane % 8 + lane / 16 * 8) * STRIDE + inner +
                                         lane / 8 % 2 * 8]);
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    multiply(sums[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
        }
#ifndef BUG_NO_BARRIER
        __syncthreads(); // before the next step but one is copied over this one
#endif
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                int row = first_row + warp_row + i * 16 + lane / 4 + part / 2 * 8;
                int column = first_column + warp_column + j * 8 + lane % 4 * 2 + part % 2;
                if (row < m && column < n) c[(u64)row * n + column] = sums[i][j][part];
            }
}

#endif
