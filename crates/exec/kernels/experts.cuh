// The rows of a block in the products of experts, whose rows are sorted by expert. Their bounds are read on the device,
// so grids are for the worst case: the tiles of expert e have numbers from bounds[e] / TILE + e on. That is at least as
// many numbers as the expert has tiles, R / TILE + E in total, and a block without rows ends at once. If the experts are a
// part of all, the tiles before their rows are none.

#pragma once
#include "common.cuh"

// The rows from bounds[expert] on, of which the block's tile begins at `first_row`; no rows if there is no tile.
struct ExpertRows {
    int expert, start, rows, first_row;
};

// The rows of the tile with this number.
template <int TILE>
__device__ __forceinline__ ExpertRows rows_of_tile(const int *bounds, int experts, int tile) {
    int low = 0, high = experts - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (bounds[middle] / TILE + middle <= tile)
            low = middle;
        else
            high = middle - 1;
    }
    int start = bounds[low], rows = bounds[low + 1] - start, first_row = (tile - start / TILE - low) * TILE;
    return {low, start, first_row >= 0 && first_row < rows ? rows : 0, first_row};
}
