//! Tensor cores: `ldmatrix` and `mma.sync.m16n8k4/8/16/32`. The ISA defines which lane holds which element.

use super::super::lanes::{bf16_value, e4m3_value, e5m2_value, f16_value};
use super::super::program::{Action, Address, MatrixType, Reg};
use super::Accumulation;
use super::access::Places;
use super::block::Block;
use super::fault::{FaultKind, Stop};
use super::warp::{Row, Warp};

const ROWS: usize = 16;
const COLUMNS: usize = 8;
const INNER: usize = 32;

impl Block<'_, '_> {
    /// Loads one, two or four matrices of 8 by 8 elements of 16 bits. Lanes 8·m to 8·m+7 have the addresses of the rows
    /// of matrix m; lane l receives elements 2·(l mod 4) and the next of row l/4, or of column l/4 if transposed.
    pub fn load_matrix(
        &mut self,
        warp: &mut Warp,
        site: usize,
        lanes: u32,
        (results, address, transposed): (&[Reg], &Address, bool),
    ) -> Result<(), Stop> {
        warp.converged(lanes, !0)?;
        complete(lanes)?;
        let naming = if results.len() == 4 { !0 } else { (1 << (8 * results.len())) - 1 };
        let places: Places = self.places(warp, naming, address, 16)?;
        self.count(site, &places, false);
        let mut rows = [[0; 16]; 32];
        for (lane, row) in rows.iter_mut().enumerate().take(8 * results.len()) {
            self.fetch(warp, lane, places.at[lane], row, false).map_err(|kind| Stop { lane: lane as u32, kind })?;
        }
        for (matrix, result) in results.iter().enumerate() {
            let element = |row: usize, column: usize| {
                let row = &rows[8 * matrix + row];
                u64::from(u16::from_le_bytes([row[2 * column], row[2 * column + 1]]))
            };
            let row: Row = std::array::from_fn(|lane| {
                let (own, pair) = (lane / 4, lane % 4 * 2);
                match transposed {
                    false => element(own, pair) | element(own, pair + 1) << 16,
                    true => element(pair, own) | element(pair + 1, own) << 16,
                }
            });
            warp.write(*result, !0, &row);
        }
        Ok(())
    }

    /// d = a b + c with a of 16 by `inner`, b of `inner` by 8. Products are exact in double precision, their sum nearly
    /// so; it is rounded to single precision once.
    pub fn multiply(&mut self, warp: &mut Warp, lanes: u32, action: &Action) -> Result<(), Stop> {
        let Action::Multiply { types, inner, d, a, b, c } = action else { return Ok(()) };
        warp.converged(lanes, !0)?;
        complete(lanes)?;
        let (mut left, mut right) = ([[0f64; INNER]; ROWS], [[0f64; COLUMNS]; INNER]);
        // Elements of a register, along `inner`. Registers alternate between rows 0 and 8.
        let packed = types[0].packed();
        for (index, reg) in a.iter().enumerate() {
            let row = warp.read(*reg, !0)?;
            for lane in 0..32 {
                for part in 0..packed {
                    let column = lane % 4 * packed + part + 4 * packed * (index / 2);
                    left[lane / 4 + 8 * (index % 2)][column] = element(types[0], row[lane], part);
                }
            }
        }
        for (index, reg) in b.iter().enumerate() {
            let row = warp.read(*reg, !0)?;
            for lane in 0..32 {
                for part in 0..packed {
                    right[lane % 4 * packed + part + 4 * packed * index][lane / 4] = element(types[1], row[lane], part);
                }
            }
        }
        // Sums of all columns at once, each in the order of `inner`.
        let sums = left.map(|row| {
            let terms = row.iter().zip(&right).take(*inner);
            terms.fold([-0.0; COLUMNS], |sums: [f64; COLUMNS], (factor, column)| {
                std::array::from_fn(|index| sums[index] + factor * column[index])
            })
        });
        let mut results = [[0; 32]; 4];
        for (index, result) in results.iter_mut().enumerate() {
            let added = warp.read(c[index], !0)?;
            for lane in 0..32 {
                let (row, column) = (lane / 4 + 8 * (index / 2), lane % 4 * 2 + index % 2);
                let sum = sums[row][column] + f64::from(f32::from_bits(added[lane] as u32));
                result[lane] = single(sum, self.settings.accumulation).to_bits().into();
            }
        }
        for (reg, row) in d.iter().zip(&results) {
            warp.write(*reg, !0, row);
        }
        self.counters.matrix_instructions += 1;
        self.counters.matrix_flops += (2 * ROWS * COLUMNS * inner) as u64;
        Ok(())
    }
}

/// Checks that the warp has 32 threads.
fn complete(lanes: u32) -> Result<(), Stop> {
    if lanes == !0 { Ok(()) } else { Err(Stop::first(lanes, FaultKind::Divergent { here: lanes, expected: !0 })) }
}

/// An element of a register. TF32 ignores the last 13 bits of single precision.
fn element(ty: MatrixType, register: u64, part: usize) -> f64 {
    let (half, byte) = ((register >> (16 * part)) as u16, (register >> (8 * part)) as u8);
    match ty {
        MatrixType::F16 => f16_value(half).into(),
        MatrixType::Bf16 => bf16_value(half).into(),
        MatrixType::Tf32 => f32::from_bits(register as u32 & !0x1fff).into(),
        MatrixType::E4m3 => e4m3_value(byte).into(),
        MatrixType::E5m2 => e5m2_value(byte).into(),
    }
}

/// Rounds a sum to single precision.
fn single(sum: f64, accumulation: Accumulation) -> f32 {
    let nearest = sum as f32;
    match accumulation {
        Accumulation::Truncating if f64::from(nearest).abs() > sum.abs() && nearest != 0.0 => {
            f32::from_bits(nearest.to_bits() - 1)
        }
        _ => nearest,
    }
}
