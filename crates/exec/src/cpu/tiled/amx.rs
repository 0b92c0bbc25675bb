//! Products of bf16 by AMX: registers that are tiles of sixteen rows of 64 bytes. A kernel call multiplies two tiles of
//! rows by two of columns, so each loaded tile is used twice.
//!
//! ```text
//!                    tmm6   tmm7      16 pairs of terms x 16 columns each
//!                   ┌──────┬──────┐
//!                   └──────┴──────┘
//!      tmm4 ┌──┐    ┌──────┬──────┐
//!           └──┘    │ tmm0 │ tmm1 │
//!      tmm5 ┌──┐    ├──────┼──────┤   16 rows x 16 columns each, in single precision
//!           └──┘    │ tmm2 │ tmm3 │
//!      16 rows x    └──────┴──────┘
//!      16 pairs
//! ```
//!
//! The standard library has no stable intrinsics for these instructions, so they are written as assembly.
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// Rows of a register, and its pairs of terms or columns.
const SIDE: usize = 16;

/// Rows and columns of the tile of sums computed by a call.
pub(super) const TILE: usize = 2 * SIDE;

/// Floats of a block of a panel: the rows or columns of a tile, times the pairs of a register.
const BLOCK: usize = TILE * SIDE;

/// Bytes of a row of a register.
const REGISTER_ROW_BYTES: usize = 4 * SIDE;

/// Bytes of a row of the tile of sums, and of a group of the right panel.
const ROW_BYTES: usize = 4 * TILE;

/// The shape of all registers: palette 1, sixteen rows of 64 bytes each.
#[repr(C, align(64))]
struct Configuration([u8; 64]);

static CONFIGURATION: Configuration = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut register = 0;
    while register < 8 {
        bytes[16 + 2 * register] = REGISTER_ROW_BYTES as u8;
        bytes[48 + register] = SIDE as u8;
        register += 1;
    }
    Configuration(bytes)
};

/// Whether the processor has the instructions, and the system lets this process use them. Queries the system once.
pub(super) fn is_available() -> bool {
    static HERE: OnceLock<bool> = OnceLock::new();
    *HERE.get_or_init(|| has_instructions() && is_permitted())
}

fn has_instructions() -> bool {
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & (BF16 | TILES) == BF16 | TILES
}

/// The state of the registers is large, so the system saves it only for processes that request it. Source:
/// Documentation/arch/x86/xstate.rst of the Linux kernel.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call takes only numbers, and changes only the process's permissions.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Words of a row of a panel that stays in the first-level cache while panels of the other operand stream past.
pub(super) const SLICE_WORDS: usize = 16 * SIDE;

/// A kernel call. `$load_a` and `$load_b` load a tile of the left panel and of the right one: `tileloaddt1` hints that
/// it should not be kept in the first-level cache.
macro_rules! multiply {
    ($name:ident, $load_a:literal, $load_b:literal, $doc:literal) => {
        #[doc = $doc]
        ///
        /// Tile = a b, added to the previous sums if `add`. a: (blocks, 32 rows, 16 pairs), b: (blocks, 16 pairs, 32
        /// columns), tile: (32, 32). Panics if their sizes differ.
        ///
        /// # Safety
        /// [`is_available`].
        pub(super) unsafe fn $name(a: &[f32], b: &[f32], tile: &mut [f32], add: bool) {
            assert!(a.len() == b.len() && a.len().is_multiple_of(BLOCK) && tile.len() == TILE * TILE);
            // SAFETY: the caller guarantees that the instructions are available. The loop reads `blocks` blocks of each
            // panel, which the slices have, and the rest reads and writes the tile's 32 rows of 128 bytes. No other
            // code uses the registers: the compiler does not, and they are released before the function returns.
            unsafe {
                asm!(
                    "ldtilecfg [{configuration}]",
                    "test {add:e}, {add:e}",
                    "jz 2f",
                    "tileloadd tmm0, [{tile} + {row}]",
                    "tileloadd tmm1, [{tile} + {row} + 64]",
                    "tileloadd tmm2, [{tile} + {row} + 2048]",
                    "tileloadd tmm3, [{tile} + {row} + 2112]",
                    "jmp 3f",
                    "2:",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "3:",
                    "test {blocks}, {blocks}",
                    "jz 5f",
                    "4:",
                    concat!($load_b, " tmm6, [{b} + {row}]"),
                    concat!($load_a, " tmm4, [{a} + {line}]"),
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    concat!($load_b, " tmm7, [{b} + {row} + 64]"),
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    concat!($load_a, " tmm5, [{a} + {line} + 1024]"),
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "add {a}, 2048",
                    "add {b}, 2048",
                    "dec {blocks}",
                    "jnz 4b",
                    "5:",
                    "tilestored [{tile} + {row}], tmm0",
                    "tilestored [{tile} + {row} + 64], tmm1",
                    "tilestored [{tile} + {row} + 2048], tmm2",
                    "tilestored [{tile} + {row} + 2112], tmm3",
                    "tilerelease",
                    configuration = in(reg) &raw const CONFIGURATION,
                    add = in(reg) u32::from(add),
                    tile = in(reg) tile.as_mut_ptr(),
                    row = in(reg) ROW_BYTES,
                    line = in(reg) REGISTER_ROW_BYTES,
                    a = inout(reg) a.as_ptr() => _,
                    b = inout(reg) b.as_ptr() => _,
                    blocks = inout(reg) a.len() / BLOCK => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

multiply!(multiply_streaming_a, "tileloaddt1", "tileloadd", "For panels of a that stream past one of b.");
multiply!(multiply_streaming_b, "tileloadd", "tileloaddt1", "For panels of b that stream past one of a.");
