// y = x, as bytes, between memories that the card can access. Blocks of 64 KiB. Devices with other means to copy need
// no kernel. Reference: src/reference/transfer.rs.

#include "common.cuh"

#define BLOCK_BYTES 65536

KERNEL(256) transfer(const char *x, char *y, u64 bytes) {
    u64 first = (u64)blockIdx.x * BLOCK_BYTES, left = bytes - first;
    copy_bytes(x + first, y + first, left < BLOCK_BYTES ? left : BLOCK_BYTES);
}
