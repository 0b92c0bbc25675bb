//! Memory that is filled with patterns: written, moved within the device, read back and compared. A pattern stays until all
//! other blocks were checked, so that memory that loses bits slowly is found.

use crate::findings::{Mismatch, Unit, WrongResults};
use crate::numbers::{SIGN, pattern};
use crate::parts::{Burst, Parts};
use plimsoll_graph::ops::Scale;
use plimsoll_graph::{GraphError, ProgramBuilder, ProgramName, Scalars, TensorId, TensorType};
use plimsoll_train::{Engine, TrainError};
use rayon::prelude::*;
use std::time::{Duration, Instant};

/// Words of a pattern that are computed and written at a time.
const PART: usize = 1 << 20;

/// A block of memory with a pattern.
struct Block {
    tensor: TensorId,
    /// A second block with the same numbers and opposite signs, which the device copies.
    mirror: Option<Mirror>,
    pass: u64,
}

struct Mirror {
    tensor: TensorId,
    /// The programs that copy to the mirror and back.
    there: ProgramName,
    back: ProgramName,
}

/// All blocks.
pub(crate) struct FilledMemory {
    blocks: Vec<Block>,
    /// The block that is checked next.
    next: usize,
    /// Bytes that were compared.
    pub compared: u64,
}

impl FilledMemory {
    pub(crate) const LABEL: &str = "memory, patterns";
    pub(crate) const MOVES: &str = "memory, moves";

    /// Blocks with these numbers of words; those with a mirror take them twice.
    pub(crate) fn build(parts: &mut Parts, blocks: &[(usize, bool)]) -> Result<Self, GraphError> {
        let mut built = Vec::with_capacity(blocks.len());
        for (index, &(words, is_mirrored)) in blocks.iter().enumerate() {
            let ty = TensorType::f32(&[words]);
            let tensor = parts.kept(&format!("block {index}"), &ty);
            let mirror = if is_mirrored { Some(Self::mirror(parts, tensor, &ty)?) } else { None };
            built.push(Block { tensor, mirror, pass: 0 });
        }
        Ok(Self { blocks: built, next: 0, compared: 0 })
    }

    fn mirror(parts: &mut Parts, tensor: TensorId, ty: &TensorType) -> Result<Mirror, GraphError> {
        let mirror = parts.kept("mirror", ty);
        let mut copy = |from: TensorId, to: TensorId| {
            let program = parts.next_program();
            let mut builder = ProgramBuilder::new(&mut parts.graph);
            builder.push_into(Scale { factor: -1.0 }, &[from], &[Some(to)])?;
            builder.finish(program);
            Ok(program)
        };
        let (there, back) = (copy(tensor, mirror)?, copy(mirror, tensor)?);
        Ok(Mirror { tensor: mirror, there, back })
    }

    /// Fills all blocks.
    pub(crate) fn prepare(&self, engine: &mut Engine) -> Result<(), TrainError> {
        self.blocks.iter().try_for_each(|block| block.fill(engine))
    }

    /// The bytes with patterns.
    pub(crate) fn bytes(&self, engine: &Engine) -> u64 {
        self.blocks.iter().map(|block| block.bytes(engine)).sum()
    }

    /// The bytes that the device moves.
    pub(crate) fn moved_bytes(&self, engine: &Engine) -> u64 {
        self.blocks.iter().filter(|block| block.mirror.is_some()).map(|block| block.bytes(engine)).sum()
    }

    /// Checks blocks for about this long, and gives each its next pattern.
    pub(crate) fn run(
        &mut self,
        engine: &mut Engine,
        time: Duration,
        wrong: &mut WrongResults,
    ) -> Result<Burst, TrainError> {
        let (mut bytes, start) = (0, Instant::now());
        while bytes == 0 || start.elapsed() < time {
            let index = self.next;
            self.next = (index + 1) % self.blocks.len();
            let block = &mut self.blocks[index];
            bytes += block.check(engine, wrong)?;
            block.pass += 1;
            block.fill(engine)?;
        }
        self.compared += bytes;
        Ok(Burst { busy: start.elapsed(), work: 2.0 * bytes as f64, unit: Unit::Bytes })
    }

    /// Copies blocks to their mirrors and back for about this long. `None` if no block has a mirror.
    pub(crate) fn run_moves(&self, engine: &mut Engine, time: Duration) -> Result<Option<Burst>, TrainError> {
        let (mut bytes, start) = (0, Instant::now());
        let mirrored = self.blocks.iter().filter_map(|block| Some((block, block.mirror.as_ref()?)));
        let mirrored = mirrored.collect::<Vec<_>>();
        if mirrored.is_empty() {
            return Ok(None);
        }
        for (block, mirror) in mirrored.iter().cycle() {
            if bytes > 0 && start.elapsed() >= time {
                break;
            }
            for program in [mirror.back, mirror.there] {
                engine.run(program, &Scalars::default())?;
            }
            bytes += 2 * block.bytes(engine);
        }
        Ok(Some(Burst { busy: start.elapsed(), work: bytes as f64, unit: Unit::Bytes }))
    }

    /// Checks all blocks, until `is_over`.
    pub(crate) fn check_all(
        &mut self,
        engine: &Engine,
        wrong: &mut WrongResults,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), TrainError> {
        for block in self.blocks.iter().take_while(|_| !is_over()) {
            self.compared += block.check(engine, wrong)?;
        }
        Ok(())
    }
}

impl Block {
    /// Bytes of the block and its mirror.
    fn bytes(&self, engine: &Engine) -> u64 {
        engine.plan()[self.tensor].region().bytes * if self.mirror.is_some() { 2 } else { 1 }
    }

    /// Writes the pattern of the block's pass, and copies it to the mirror.
    fn fill(&self, engine: &mut Engine) -> Result<(), TrainError> {
        let (address, pass) = (engine.plan()[self.tensor].region().offset / 4, self.pass);
        fill(engine, self.tensor, |index| pattern(address + index, pass))?;
        match &self.mirror {
            Some(mirror) => engine.run(mirror.there, &Scalars::default()),
            None => Ok(()),
        }
    }

    /// Compares the block and its mirror with the pattern. Returns their bytes.
    fn check(&self, engine: &Engine, wrong: &mut WrongResults) -> Result<u64, TrainError> {
        let address = engine.plan()[self.tensor].region().offset / 4;
        let mirror = self.mirror.as_ref().map(|mirror| (mirror.tensor, SIGN));
        let mut compared = 0;
        for (tensor, sign) in [Some((self.tensor, 0)), mirror].into_iter().flatten() {
            let offset = engine.plan()[tensor].region().offset;
            let bytes = engine.view(tensor)?;
            compare(
                &bytes,
                |index| pattern(address + index, self.pass) ^ sign,
                FilledMemory::LABEL,
                offset,
                false,
                wrong,
            );
            compared += bytes.len() as u64;
        }
        Ok(compared)
    }
}

/// Compares words with what they must be, and reports those that differ. `offset`: that of the first one in its arena.
pub(crate) fn compare(
    bytes: &[u8],
    expected: impl Fn(u64) -> u32 + Sync,
    workload: &str,
    offset: u64,
    on_host: bool,
    wrong: &mut WrongResults,
) {
    let bits = |index: usize, word: &[u8]| {
        let bits = [u32::from_le_bytes([word[0], word[1], word[2], word[3]]), expected(index as u64)];
        (bits[0] != bits[1]).then_some(bits)
    };
    let words = bytes.par_chunks_exact(4).enumerate().filter_map(|(index, word)| bits(index, word));
    let counts = words.map(|[found, expected]| [1, u64::from((found ^ expected).count_ones())]);
    let counts = counts.reduce(|| [0, 0], |a, b| [a[0] + b[0], a[1] + b[1]]);
    wrong.checks += 1;
    if counts != [0, 0] {
        let places =
            bytes.chunks_exact(4).enumerate().filter_map(|(index, word)| Some((index as u64, bits(index, word)?)));
        let mismatches = places.map(|(index, bits)| {
            let workload = workload.to_owned();
            Mismatch { workload, offset: offset + 4 * index, on_host, bits: Some(bits) }
        });
        wrong.add_all(counts, mismatches);
    }
}

/// Fills a tensor with words, in parts.
pub(crate) fn fill(engine: &mut Engine, tensor: TensorId, word: impl Fn(u64) -> u32 + Sync) -> Result<(), TrainError> {
    let words = (engine.plan()[tensor].region().bytes / 4) as usize;
    let mut values = vec![0; PART.min(words)];
    for first in (0..words).step_by(PART) {
        let values = &mut values[..PART.min(words - first)];
        values.par_iter_mut().enumerate().for_each(|(index, value)| *value = word((first + index) as u64));
        engine.write_part(tensor, 4 * first as u64, bytemuck::cast_slice(values))?;
    }
    Ok(())
}
