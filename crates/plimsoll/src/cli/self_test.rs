//! `plimsoll doctor --self-test`: tests whether a GPU computes the same as the processor, measures its speed, and checks that
//! all memory is freed. It prints the results so far even if a later part fails.

use super::cards::{Choice, open_card};
use super::cublas::Cublas;
use super::failure::exit_code;
use super::processor::free_memory;
use super::{Failure, in_pool};
use crate::streams::{talk, write_data};
use ::plimsoll_plan::card_with_memory;
use ::plimsoll_train::{CalibrationError, TrainError, check_losses};
use plimsoll_exec::cases::PRECISIONS;
use plimsoll_exec::cuda::{CudaDevice, CudaOptions, Driver, OLDEST_WITH_TF32};
use plimsoll_exec::self_test::{
    KernelCheck, Speeds, check_kernels, check_products, measure_products, measure_speeds, room_beside_nothing,
};
use plimsoll_exec::{Device, DeviceError};
use plimsoll_graph::{Products, Targets};
use plimsoll_render::{DriverFindings, LibraryFindings, MemoryFindings, SelfTest, TestedCard, self_test_text};
use plimsoll_telemetry::system_name;
use std::time::Instant;

/// Tests a GPU and prints the results. Errors: no GPU can be used; the test found a problem.
pub(super) fn run(choice: Option<Choice>, cublas: &Cublas, json: bool) -> Result<u8, Failure> {
    let index = match choice {
        None | Some(Choice::Auto) => None,
        Some(Choice::Cuda(index)) => index,
        Some(Choice::Cpu) => {
            return Err(Failure::bad_flag("the self-test is for GPUs").hint("`--device cuda` tests one"));
        }
    };
    let threads = super::budget::threads(None)?;
    let found = in_pool(threads, || Examination::begin(index, cublas, threads)?.finish())?;
    let problems = found.problems();
    if json {
        write_data(serde_json::to_string_pretty(&found.json()).expect("plain data"))?;
    } else {
        write_data(self_test_text(&found))?;
    }
    let Some(first) = problems.first() else { return Ok(exit_code::DONE) };
    let failure = Failure::device(format!("the self-test found {}: {first}", count(problems.len())));
    let failure = failure.hint("please report it, with the printed block");
    Err(match found.device_error() {
        Some(DeviceError::Cuda(error)) => {
            Failure::from(error.clone()).hints().iter().fold(failure, |failure, hint| failure.hint(hint.clone()))
        }
        _ => failure,
    })
}

fn count(problems: usize) -> String {
    if problems == 1 { "a problem".to_owned() } else { format!("{problems} problems, the first") }
}

/// A GPU under test.
struct Examination {
    start: Instant,
    driver: &'static Driver,
    /// Open until the end, so that readings of its free memory are comparable.
    device: CudaDevice,
    targets: Targets,
    memory: MemoryFindings,
}

impl Examination {
    /// Opens the GPU and cuBLASLt. Errors: the same as in training.
    fn begin(index: Option<usize>, cublas: &Cublas, threads: usize) -> Result<Self, Failure> {
        let start = Instant::now();
        let mut device = open_card(index, CudaOptions::default())?.within(free_memory(None));
        cublas.give_to(&mut device)?;
        let driver = Driver::find()?;
        let targets = Targets::cuda(device.card().compute_capability, threads);
        let room = room_beside_nothing(&mut device, &targets).map_err(TrainError::from)?;
        let memory = MemoryFindings { before: room.map(|room| room.free), after: None, error: None };
        Ok(Self { start, driver, device, targets, memory })
    }

    /// Runs a part with products in TF32.
    fn in_tf32<R>(&mut self, part: fn(&mut dyn Device, &Targets) -> R) -> R {
        self.device.set_tf32(true);
        let result = part(&mut self.device, &self.targets);
        self.device.set_tf32(false);
        result
    }

    /// Tests the ops with matrix products in cuBLASLt; `None` if the GPU uses no library.
    fn test_library(&mut self, has_tf32: bool) -> Option<LibraryFindings> {
        let library = self.device.library()?;
        talk("testing cuBLASLt");
        let ours = self.targets;
        self.targets = ours.multiplying_by(Products::CublasLt);
        let mut found = LibraryFindings {
            path: library.path().to_owned(),
            version: library.version(),
            kernels: check_products(&mut self.device, &self.targets, false),
            speeds: Speeds::default(),
        };
        if has_tf32 && !found.ended_the_device() {
            found.kernels.extend(self.in_tf32(|device, targets| check_products(device, targets, true)));
        }
        if !found.ended_the_device() {
            found.speeds = measure_products(&mut self.device, &self.targets, &PRECISIONS, false);
        }
        if has_tf32 && !found.ended_the_device() {
            let in_tf32 = self.in_tf32(|device, targets| measure_products(device, targets, &[], true));
            found.speeds.rates.extend(in_tf32.rates);
            found.speeds.error = found.speeds.error.take().or(in_tf32.error);
        }
        self.targets = ours;
        Some(found)
    }

    /// Runs the parts in turn, as long as the GPU works.
    fn finish(mut self) -> Result<SelfTest, Failure> {
        let (driver, card) = (self.driver, self.device.card().clone());
        let open = || -> Result<Box<dyn Device>, DeviceError> {
            Ok(Box::new(CudaDevice::open(driver, card.clone(), CudaOptions::default())?.within(free_memory(None))))
        };
        talk(format_args!("on {}: testing kernels", card.name));
        let mut kernels = check_kernels(&mut self.device, &self.targets);
        let mut works = !kernels.last().is_some_and(KernelCheck::ended_the_device);
        let has_tf32 = card.compute_capability >= OLDEST_WITH_TF32;
        if works && has_tf32 {
            kernels.extend(self.in_tf32(|device, targets| check_products(device, targets, true)));
            works = !kernels.last().is_some_and(KernelCheck::ended_the_device);
        }
        let mut training = None;
        if works {
            talk("comparing losses with the CPU's");
            let losses = check_losses(&self.targets, &open);
            works =
                !losses.as_ref().err().and_then(CalibrationError::of_device).is_some_and(DeviceError::ends_the_device);
            training = Some(losses);
        }
        let mut speeds = Speeds::default();
        if works {
            talk("measuring speed");
            speeds = measure_speeds(&mut self.device, &self.targets, &PRECISIONS);
            if speeds.error.is_none() && has_tf32 {
                let in_tf32 = self.in_tf32(|device, targets| measure_products(device, targets, &[], true));
                speeds.rates.extend(in_tf32.rates);
                speeds.error = in_tf32.error;
            }
            works = !speeds.error.as_ref().is_some_and(DeviceError::ends_the_device);
        }
        let library = if works { self.test_library(has_tf32) } else { None };
        works &= !library.as_ref().is_some_and(LibraryFindings::ended_the_device);
        if works {
            match room_beside_nothing(&mut self.device, &self.targets) {
                Ok(room) => self.memory.after = room.map(|room| room.free),
                Err(error) => self.memory.error = Some(error),
            }
        }
        let (major, minor) = driver.version();
        Ok(SelfTest {
            system: system_name(),
            driver: DriverFindings { path: driver.path().to_owned(), cuda: format!("{major}.{minor}") },
            stand_in: driver.is_stand_in(),
            paper: card_with_memory(&card.name, card.memory).ok(),
            card: TestedCard {
                index: card.index,
                name: card.name,
                capability: card.compute_capability,
                memory: card.memory,
            },
            kernels,
            training,
            speeds,
            library,
            memory: self.memory,
            seconds: self.start.elapsed().as_secs_f64(),
        })
    }
}
