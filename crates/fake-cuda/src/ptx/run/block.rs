//! A block: its warps in some order, its barriers and shared memory, and the execution of each instruction for a warp.

use super::super::program::{Action, Join, Kernel, Reg};
use super::fault::{Fault, FaultKind, Stop};
use super::mask::each;
use super::warp::{Position, Row, Warp};
use super::{Launch, Order, Random, RunSettings, mix};
use crate::shadow::{Access, Memory, Pages, Stamp};
use crate::trace::{Counters, Site};

/// State of a launch for its current block.
pub(super) struct Block<'a, 'k> {
    pub kernel: &'k Kernel,
    pub launch: &'a Launch<'a>,
    pub settings: &'a RunSettings,
    pub memory: &'a mut Memory,
    files: &'a [(u32, String)],
    /// Number of the block in the launch.
    number: u32,
    at: [u32; 3],
    /// Shared memory. Each block counts as a launch of it, so that the next one starts without its accesses.
    pub shared: Pages,
    /// Each warp's clock at its last block barrier.
    passed: Vec<u32>,
    pub counters: Counters,
    /// Memory requests of each instruction.
    pub sites: Vec<Site>,
}

impl<'a, 'k> Block<'a, 'k> {
    /// The state before the first block.
    pub fn new(
        kernel: &'k Kernel,
        launch: &'a Launch<'a>,
        settings: &'a RunSettings,
        memory: &'a mut Memory,
        files: &'a [(u32, String)],
    ) -> Self {
        Self {
            kernel,
            launch,
            settings,
            memory,
            files,
            number: 0,
            at: [0; 3],
            shared: Pages::new(0),
            passed: Vec::new(),
            counters: Counters { launches: 1, ..Counters::default() },
            sites: vec![Site::default(); kernel.instructions.len()],
        }
    }

    /// The counters, with each site's memory requests.
    pub fn finish(self) -> Counters {
        let mut counters = self.counters;
        for (index, mut site) in self.sites.into_iter().enumerate().filter(|(_, site)| site.requests > 0) {
            let instruction = &self.kernel.instructions[index];
            site.text.clone_from(&instruction.text);
            site.source = source(self.files, instruction.file, instruction.line);
            counters.sites.insert(index, site);
        }
        counters
    }

    /// Runs a block to its end.
    pub fn run(&mut self, number: u32, position: Position, warps: &mut [Warp<'k>]) -> Result<(), Box<Fault>> {
        (self.number, self.at) = (number, position.at);
        let shared = position.dynamic_start + position.dynamic_shared;
        self.shared = Pages::new(shared.into());
        self.passed = vec![0; warps.len()];
        warps.iter_mut().for_each(|warp| warp.begin(&position));
        let seed = match self.settings.order {
            Order::Random(seed) => seed,
            _ => 0,
        };
        let mut random = Random(seed ^ mix(number.into()));
        let mut turn = 0;
        loop {
            let Some((chosen, steps)) = self.choose(warps, &mut random, &mut turn) else {
                if warps.iter().all(|warp| warp.current().is_none()) {
                    return Ok(());
                }
                self.pass_barrier(warps)?;
                continue;
            };
            for _ in 0..steps {
                let Some((at, here)) = warps[chosen].current().filter(|_| !warps[chosen].waiting) else { break };
                self.step(&mut warps[chosen], at, here).map_err(|stop| self.fault(chosen as u32, Some(at), stop))?;
            }
        }
    }

    /// The next warp to run, and for how many instructions. `None`: all wait at a barrier or have exited.
    fn choose(&self, warps: &[Warp], random: &mut Random, turn: &mut usize) -> Option<(usize, u64)> {
        let ready = |warp: &usize| warps[*warp].current().is_some() && !warps[*warp].waiting;
        let mut all = 0..warps.len();
        match self.settings.order {
            Order::Forward => Some((all.find(ready)?, u64::MAX)),
            Order::Backward => Some((all.rev().find(ready)?, u64::MAX)),
            Order::Interleaved => {
                let next = all.map(|offset| (*turn + offset) % warps.len()).find(ready)?;
                *turn = next + 1;
                Some((next, 1))
            }
            Order::Random(_) => {
                let count = all.clone().filter(ready).count() as u64;
                let skipped = (count > 0).then(|| random.below(count))?;
                Some((all.filter(ready).nth(skipped as usize)?, random.below(8) + 1))
            }
        }
    }

    /// Releases the barrier: all live warps wait at it.
    fn pass_barrier(&mut self, warps: &mut [Warp]) -> Result<(), Box<Fault>> {
        if let Some(gone) = warps.iter().position(|warp| warp.current().is_none()) {
            // The barrier is the instruction before a waiting warp's next one.
            let barrier = warps.iter().find_map(|warp| Some(warp.current()?.0 - 1));
            return Err(self.fault(gone as u32, barrier, Stop { lane: 0, kind: FaultKind::LeavesBarrier }));
        }
        for (warp, passed) in warps.iter_mut().zip(&mut self.passed) {
            warp.waiting = false;
            warp.clock += 1;
            *passed = warp.clock;
        }
        self.counters.barriers += 1;
        Ok(())
    }

    fn fault(&self, warp: u32, at: Option<usize>, stop: Stop) -> Box<Fault> {
        let instruction = at.and_then(|at| self.kernel.instructions.get(at));
        Box::new(Fault {
            kind: stop.kind,
            kernel: self.kernel.name.clone(),
            source: instruction.map_or_else(String::new, |i| source(self.files, i.file, i.line)),
            text: instruction.map_or_else(String::new, |i| i.text.clone()),
            block: self.at,
            thread: warp * 32 + stop.lane,
        })
    }

    /// Distinguishes accesses to shared memory of this block from those of other blocks.
    fn shared_launch(&self) -> u64 {
        u64::from(self.number) + 1
    }

    /// Shared memory and a lane's access, borrowed together.
    pub fn shared_by(&mut self, warp: &Warp, lane: usize, strong: bool) -> (&mut Pages, Access<'_>, u64) {
        let launch = self.shared_launch();
        let access = Access::new(self.number, warp.index * 32 + lane as u32, warp.clock, strong, &self.passed);
        (&mut self.shared, access, launch)
    }

    /// Device memory and a lane's access, borrowed together.
    pub fn global_by(&mut self, warp: &Warp, lane: usize, strong: bool) -> (&mut Memory, Access<'_>) {
        let access = Access::new(self.number, warp.index * 32 + lane as u32, warp.clock, strong, &self.passed);
        (self.memory, access)
    }

    /// Executes one instruction for the lanes `here`.
    fn step(&mut self, warp: &mut Warp, at: usize, here: u32) -> Result<(), Stop> {
        let kernel = self.kernel;
        let Some(instruction) = kernel.instructions.get(at) else {
            return self.leave(warp, here);
        };
        self.counters.warp_instructions += 1;
        if self.counters.warp_instructions > self.settings.steps || warp.clock >= Stamp::CLOCKS - 1 {
            return Err(Stop::first(here, FaultKind::Steps(self.settings.steps)));
        }
        let mut lanes = here;
        if let Some((reg, negated)) = instruction.predicate {
            lanes &= chosen(warp.read(reg, here)?, negated);
        }
        if lanes == 0 {
            warp.advance(0, 0, 0);
            return Ok(());
        }
        self.counters.lane_instructions += u64::from(lanes.count_ones());
        match &instruction.action {
            Action::Branch(target) => {
                warp.advance(0, lanes, *target);
                return Ok(());
            }
            Action::Return => return self.leave(warp, lanes),
            Action::Trap => return Err(Stop::first(lanes, FaultKind::Trap)),
            Action::Nothing => {}
            Action::Barrier => {
                warp.converged(lanes, !0)?;
                warp.waiting = true;
            }
            action => self.act(warp, at, lanes, action)?,
        }
        warp.advance(0, 0, 0);
        Ok(())
    }

    fn leave(&mut self, warp: &mut Warp, lanes: u32) -> Result<(), Stop> {
        let busy = warp.copies.lanes() & lanes;
        if busy != 0 {
            return Err(Stop::first(busy, FaultKind::LeavesCopies));
        }
        warp.advance(lanes, 0, 0);
        Ok(())
    }

    /// Executes an action that is neither a jump nor a block barrier.
    fn act(&mut self, warp: &mut Warp, at: usize, lanes: u32, action: &Action) -> Result<(), Stop> {
        match action {
            Action::Compute { lanes: compute, result, operands, used, approximate, flush, saturate, flops } => {
                let rows = operand_rows(warp, operands, *used, lanes)?;
                let mut row = match *flush {
                    true => compute(rows.map(|row| row.map(flushed)).each_ref()),
                    false => compute(rows),
                };
                if *approximate && self.settings.blur != 0 {
                    each(lanes)
                        .for_each(|l| row[l] = blurred(row[l], self.settings.blur ^ mix(rows[0][l] ^ at as u64)));
                }
                if *flush {
                    row = row.map(flushed);
                }
                if *saturate {
                    row = row.map(saturated);
                }
                warp.write(*result, lanes, &row);
                self.counters.flops += flops * u64::from(lanes.count_ones());
                Ok(())
            }
            Action::Convert { convert, result, operands } => {
                let rows = [*warp.read(operands[0], lanes)?, *warp.read(operands[1], lanes)?];
                let mut row = [0; 32];
                each(lanes).for_each(|l| row[l] = convert.apply(rows[0][l], rows[1][l]));
                warp.write(*result, lanes, &row);
                Ok(())
            }
            Action::Compare { lanes: compare, result, opposite, operands, join, with } => {
                let (a, b) = (warp.read(operands[0], lanes)?, warp.read(operands[1], lanes)?);
                let outcome = compare([a, b, a, a]);
                let with = warp.read(with.0, lanes)?.map(|value| value & 1 ^ u64::from(with.1));
                let inverse = opposite.map(|reg| (reg, joined(&outcome.map(|holds| holds ^ 1), &with, *join)));
                warp.write(*result, lanes, &joined(&outcome, &with, *join));
                if let Some((reg, row)) = inverse {
                    warp.write(reg, lanes, &row);
                }
                Ok(())
            }
            Action::Pack { result, parts, bits } => {
                let mut row = [0; 32];
                for (place, part) in parts.iter().enumerate() {
                    let part = warp.read(*part, lanes)?;
                    each(lanes).for_each(|l| row[l] |= (part[l] & low(*bits)) << (bits * place as u32));
                }
                warp.write(*result, lanes, &row);
                Ok(())
            }
            Action::Unpack { parts, operand, bits } => {
                let whole = *warp.read(*operand, lanes)?;
                for (place, part) in parts.iter().enumerate() {
                    warp.write(*part, lanes, &whole.map(|value| value >> (bits * place as u32) & low(*bits)));
                }
                Ok(())
            }
            Action::Load(access) => self.load(warp, at, lanes, access),
            Action::Store(access) => self.store(warp, at, lanes, access),
            Action::Atomic { .. } => self.atomic(warp, at, lanes, action),
            Action::CopyAsync { .. } => self.copy_async(warp, at, lanes, action),
            Action::CopyCommit => {
                warp.copies.commit(lanes);
                Ok(())
            }
            Action::CopyWait(groups) => self.copy_wait(warp, lanes, *groups),
            Action::LoadMatrix { results, address, transposed } => {
                self.load_matrix(warp, at, lanes, (results, address, *transposed))
            }
            Action::Multiply { .. } => self.multiply(warp, lanes, action),
            Action::ActiveMask(result) => {
                warp.write(*result, lanes, &[lanes.into(); 32]);
                Ok(())
            }
            Action::WarpBarrier(mask) => {
                let mask = warp.uniform(*mask, lanes, "lanes have different masks")? as u32;
                warp.converged(lanes, mask)?;
                // A barrier of some lanes does not order the others.
                warp.clock += u32::from(lanes == warp.live());
                Ok(())
            }
            exchange => self.exchange(warp, lanes, exchange),
        }
    }
}

/// Rows of the used operands; the rest repeat the first.
fn operand_rows<'w>(warp: &'w Warp, operands: &[Reg; 4], used: usize, lanes: u32) -> Result<[&'w Row; 4], Stop> {
    let mut rows = [warp.read(operands[0], lanes)?; 4];
    for (row, reg) in rows.iter_mut().zip(operands).take(used).skip(1) {
        *row = warp.read(*reg, lanes)?;
    }
    Ok(rows)
}

/// Lanes in which a predicate is true.
pub(super) fn chosen(row: &Row, negated: bool) -> u32 {
    let holds = row.iter().enumerate().fold(0, |lanes, (lane, value)| lanes | ((value & 1) as u32) << lane);
    if negated { !holds } else { holds }
}

fn joined(outcome: &Row, with: &Row, join: Join) -> Row {
    match join {
        Join::None => *outcome,
        Join::And => std::array::from_fn(|lane| outcome[lane] & with[lane]),
        Join::Or => std::array::from_fn(|lane| outcome[lane] | with[lane]),
        Join::Xor => std::array::from_fn(|lane| outcome[lane] ^ with[lane]),
    }
}

/// The lowest bits.
fn low(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Flushes subnormal single-precision numbers to 0.
fn flushed(bits: u64) -> u64 {
    if f32::from_bits(bits as u32).is_subnormal() { bits & 0x8000_0000 } else { bits }
}

/// Clamps a single-precision number to 0 to 1.
fn saturated(bits: u64) -> u64 {
    let x = f32::from_bits(bits as u32);
    u64::from((if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) }).to_bits())
}

/// Blurs an approximate result by up to 2 units in the last place.
fn blurred(bits: u64, seed: u64) -> u64 {
    let x = f32::from_bits(bits as u32);
    if !x.is_normal() {
        return bits;
    }
    let moved = (bits + mix(seed) % 5).wrapping_sub(2);
    if f32::from_bits(moved as u32).is_normal() { moved } else { bits }
}

/// Source location of an instruction.
fn source(files: &[(u32, String)], file: u32, line: u32) -> String {
    match files.iter().find(|(index, _)| *index == file) {
        Some((_, name)) => format!("{name}:{line}"),
        None => format!("PTX line {line}"),
    }
}
