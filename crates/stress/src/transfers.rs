//! Copies from the host to the device and back to the same place, so that a bit that one of them changes stays changed until
//! the pattern is compared.

use crate::findings::{Unit, WrongResults};
use crate::memory::{compare, fill};
use crate::numbers::pattern;
use crate::parts::{Burst, Parts};
use plimsoll_graph::ops::Transfer;
use plimsoll_graph::{GraphError, MemoryId, ProgramBuilder, ProgramName, Scalars, TensorId, TensorType};
use plimsoll_train::{Engine, TrainError};
use std::time::{Duration, Instant};

/// A tensor on the host and its copy on the device.
pub(crate) struct Transfers {
    on_host: TensorId,
    programs: [ProgramName; 2],
    words: usize,
    pass: u64,
}

impl Transfers {
    pub(crate) const LABEL: &str = "transfers";

    pub(crate) fn build(parts: &mut Parts, words: usize) -> Result<Self, GraphError> {
        let ty = TensorType::f32(&[words]);
        let [on_host, on_device] = ["transfer, host", "transfer, device"].map(|name| parts.kept(name, &ty));
        parts.graph[on_host].memory = MemoryId::HOST;
        let mut copy = |from: TensorId, to: TensorId| {
            let program = parts.next_program();
            let mut builder = ProgramBuilder::new(&mut parts.graph);
            builder.push_into(Transfer, &[from], &[Some(to)])?;
            builder.finish(program);
            Ok(program)
        };
        let programs = [copy(on_host, on_device)?, copy(on_device, on_host)?];
        Ok(Self { on_host, programs, words, pass: 0 })
    }

    /// Bytes of a copy.
    pub(crate) fn bytes(&self) -> u64 {
        4 * self.words as u64
    }

    /// Copies for about this long.
    pub(crate) fn run(
        &mut self,
        engine: &mut Engine,
        time: Duration,
        wrong: &mut WrongResults,
    ) -> Result<Burst, TrainError> {
        let pass = self.pass;
        self.pass += 1;
        fill(engine, self.on_host, |index| pattern(index, pass))?;
        let (mut copies, start) = (0, Instant::now());
        while copies == 0 || start.elapsed() < time {
            for program in self.programs {
                engine.run(program, &Scalars::default())?;
            }
            copies += 2;
        }
        let busy = start.elapsed();
        let offset = engine.plan()[self.on_host].region().offset;
        compare(&engine.view(self.on_host)?, |index| pattern(index, pass), Self::LABEL, offset, true, wrong);
        Ok(Burst { busy, work: (copies * self.bytes()) as f64, unit: Unit::Bytes })
    }
}
