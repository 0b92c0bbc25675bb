//! Chooses and opens the device of a command: the processor or a card. Opens a card's context first, so that the budget
//! is the memory that is free after that.

use super::Failure;
use super::budget::{BudgetArgs, CardMemory, OwnUse, Presence};
use super::cublas::{Cublas, products_of};
use super::device::Device;
use super::failure::{exit_code, line};
use super::processor::{free_memory, processor};
use super::speed::{Speed, check_tf32, on_paper, speed_of};
use crate::streams::talk;
use ::plimsoll_plan::{Card as PaperCard, FailureKind, Plan};
use clap::{Args, ValueEnum};
use plimsoll_exec::cuda::{Card, CublasLt, CudaDevice, CudaError, CudaOptions, Driver, Fault, ProductChoices};
use plimsoll_exec::{Device as _, DeviceError};
use plimsoll_graph::{DeviceKind, Products, Targets};
use plimsoll_telemetry::own_gpu_memory;
use plimsoll_units::Bytes;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::str::FromStr;

/// How to install a driver.
const INSTALL: &str = if cfg!(target_os = "windows") {
    "install one from nvidia.com/drivers"
} else {
    "run `sudo ubuntu-drivers install` on Ubuntu, or see nvidia.com/drivers; under WSL2, install the driver in Windows"
};

/// The variable that turns TF32 off in NVIDIA's libraries (`0`).
const TF32_OVERRIDE: &str = "NVIDIA_TF32_OVERRIDE";

/// The device, and how a card is used.
#[derive(Debug, Clone, Args)]
pub(super) struct DeviceArgs {
    /// Device to run on: `cpu`, a GPU (`cuda`, `cuda:1`), or `auto`: the GPU with the most free memory if one can be
    /// used, otherwise the CPU
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Choice,
    /// Launch a whole step on a GPU with one call
    #[arg(long, value_enum, value_name = "on|off", default_value = "on")]
    cuda_graph: OnOff,
    /// Round operands to TF32 in single-precision products of linear layers and output heads, for the tensor cores of
    /// GPUs of compute capability 8.0 or newer; half precision is not affected
    #[arg(long, value_enum, value_name = "on|off", default_value = "off")]
    tf32: OnOff,
    /// Multiply matrices on a GPU with NVIDIA's cuBLASLt: the newest one found (`auto`), the library at this path, or
    /// only the built-in kernels (`off`), which also compute what a library can't
    #[arg(long, value_name = "auto|off|PATH", default_value = "auto")]
    cublas: Cublas,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnOff {
    // Some YAML readers parse these words as booleans.
    #[value(alias = "true")]
    On,
    #[value(alias = "false")]
    Off,
}

impl OnOff {
    fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Auto,
    Cpu,
    /// The card with this number, or the one with the most free memory.
    Cuda(Option<usize>),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(None)),
            other => match other.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(index)) => Ok(Self::Cuda(Some(index))),
                _ => Err(format!("`{text}` is not `auto`, `cpu`, `cuda` or `cuda:N`")),
            },
        }
    }
}

impl Choice {
    /// Finds the device without printing. Errors: a requested card can't be used.
    pub(super) fn look(self, options: CudaOptions) -> Result<FoundDevice, CudaError> {
        match self {
            Self::Cpu => Ok(FoundDevice::Processor),
            Self::Cuda(index) => open_card(index, options).map(FoundDevice::Card),
            Self::Auto => Ok(open_card(None, options).map_or_else(FoundDevice::NoCard, FoundDevice::AnyCard)),
        }
    }
}

/// The result of the search for a device.
pub(super) enum FoundDevice {
    /// The processor, as requested.
    Processor,
    /// The requested card.
    Card(CudaDevice),
    /// A card, when any was accepted.
    AnyCard(CudaDevice),
    /// No card, when any was accepted, with the reason.
    NoCard(CudaError),
}

impl FoundDevice {
    /// The card, if one was found.
    pub(super) fn card(&self) -> Option<&Card> {
        match self {
            Self::Card(card) | Self::AnyCard(card) => Some(card.card()),
            Self::Processor | Self::NoCard(_) => None,
        }
    }

    /// The card, or `None` for the processor; prints the choice of `auto` and its reason.
    pub(super) fn said(self) -> Option<CudaDevice> {
        match self {
            Self::Processor => None,
            Self::Card(card) => Some(card),
            Self::AnyCard(card) => {
                talk(format_args!("on {}; `--device cpu` runs on the CPU", card.card().name));
                Some(card)
            }
            Self::NoCard(CudaError::NoDriver { .. }) => {
                talk("on the CPU: no NVIDIA driver was found");
                None
            }
            Self::NoCard(error) => {
                talk(format_args!("on the CPU: {error}"));
                None
            }
        }
    }
}

/// An open device, with what its plans need to know.
pub(super) struct Opened {
    pub(super) device: Device,
    card: Option<CudaDevice>,
    /// Whether products in single precision round their operands to TF32.
    pub(super) tf32: bool,
    products: ProductSettings,
}

/// How the algorithms of a card's products are chosen.
#[derive(Clone, Default)]
struct ProductSettings {
    /// The algorithms of a resumed run.
    kept: Option<ProductChoices>,
    /// Whether to time algorithms for products that have none stored.
    autotune: bool,
}

/// What is needed to open a card again.
pub(super) struct Reopening {
    card: Card,
    library: Option<&'static CublasLt>,
    products: ProductSettings,
}

impl Reopening {
    /// For a card that was opened with this library, or with none.
    pub(super) fn new(card: Card, library: Option<&'static CublasLt>) -> Self {
        Self { card, library, products: ProductSettings::default() }
    }

    pub(super) fn card(&self) -> &Card {
        &self.card
    }

    pub(super) fn library(&self) -> Option<&'static CublasLt> {
        self.library
    }

    /// Opens the card again, with its free memory now. Errors: nothing is left of its memory.
    pub(super) fn opened(
        &self,
        again: CudaDevice,
        device: &DeviceArgs,
        budget: &BudgetArgs,
    ) -> Result<Opened, Failure> {
        let mut opened = Opened::of(again, budget, device.tf32(), None)?;
        opened.choose_products(self.products.kept.clone(), self.products.autotune);
        Ok(opened)
    }
}

impl DeviceArgs {
    /// The flags as settings. A resumed run stays on the kind of device that it started on, for the same order of sums.
    pub(super) fn settings(&self, plan: &Plan) -> Map<String, Value> {
        let device = match plan.targets.device.kind() {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
        };
        let (cuda_graph, tf32) = (self.cuda_graph.name(), self.tf32.name());
        let settings =
            json!({ "device": device, "cuda_graph": cuda_graph, "tf32": tf32, "cublas": self.cublas.setting() });
        settings.as_object().cloned().unwrap_or_default()
    }

    /// Opens the requested device, and prints the choice of `auto` and its reason. Errors: a requested card can't be
    /// used; nothing is left of its memory.
    pub(super) fn open(&self, budget: &BudgetArgs, speed: Option<&Path>) -> Result<Opened, Failure> {
        self.open_found(self.look()?, budget, speed)
    }

    /// The same for a device that was already found.
    pub(super) fn open_found(
        &self,
        found: FoundDevice,
        budget: &BudgetArgs,
        speed: Option<&Path>,
    ) -> Result<Opened, Failure> {
        match self.with_library(found.said())? {
            None => {
                let device = Device::processor(budget, speed)?;
                Ok(Opened { device, card: None, tf32: false, products: ProductSettings::default() })
            }
            Some(card) => Opened::of(card, budget, self.tf32(), speed),
        }
    }

    /// Turns launches of whole steps off.
    pub(super) fn launch_each_kernel(&mut self) {
        self.cuda_graph = OnOff::Off;
    }

    /// Turns libraries of matrix products off.
    pub(super) fn use_no_library(&mut self) {
        self.cublas = Cublas::Off;
    }

    /// Whether products in single precision round their operands to TF32.
    pub(super) fn tf32(&self) -> bool {
        self.tf32 == OnOff::On && std::env::var_os(TF32_OVERRIDE).is_none_or(|value| value != "0")
    }

    /// The effect of NVIDIA's variable, if it is set.
    fn tf32_note(&self, is_card: bool) -> Option<String> {
        let value = std::env::var(TF32_OVERRIDE).ok()?;
        let set = format!("{TF32_OVERRIDE}={value}");
        Some(match (value.as_str(), self.tf32) {
            _ if !is_card => format!("{set} changes nothing: the CPU has no TF32"),
            ("0", OnOff::On) => format!("{set} turns `--tf32 on` off"),
            ("0", OnOff::Off) => format!("{set} changes nothing: TF32 is off without `--tf32 on`"),
            _ => format!("{set} affects only NVIDIA's libraries; `--tf32 on` uses TF32 in all products"),
        })
    }

    /// The products of plans for a card that is not open. Errors: the named library can't be opened.
    pub(super) fn products_of_absent_card(&self) -> Result<Products, Failure> {
        self.cublas.of_absent_card()
    }

    /// The requested card, opened with its library of products, or `None` for the CPU; prints the choice of `auto` and
    /// its reason. Errors: a requested card or library can't be used; TF32 is requested, but the device has none.
    pub(super) fn card(&self) -> Result<Option<CudaDevice>, Failure> {
        self.with_library(self.look()?.said())
    }

    fn with_library(&self, mut card: Option<CudaDevice>) -> Result<Option<CudaDevice>, Failure> {
        match (&mut card, &self.cublas) {
            (Some(card), cublas) => cublas.give_to(card)?,
            (None, Cublas::Library(_)) => {
                return Err(Failure::bad_flag("`--cublas PATH` is for GPUs, but this runs on the CPU")
                    .hint("`--blas PATH` is for the CPU"));
            }
            (None, _) => {}
        }
        self.tf32_note(card.is_some()).iter().for_each(|note| talk(format_args!("note: {note}")));
        if self.tf32() {
            match &card {
                None => {
                    return Err(Failure::bad_flag("`--tf32 on` is for GPUs, but this runs on the CPU")
                        .hint("`--tf32 off` computes in single precision"));
                }
                Some(opened) => check_tf32(&opened.card().name, opened.card().compute_capability)?,
            }
        }
        Ok(card)
    }

    /// Finds the requested device without printing. Errors: a requested card can't be used.
    pub(super) fn look(&self) -> Result<FoundDevice, CudaError> {
        self.device.look(self.options())
    }

    /// The same card, opened again with its library. Errors: it can no longer be used.
    pub(super) fn again(&self, before: &Reopening) -> Result<CudaDevice, CudaError> {
        let mut card = opened(Driver::find()?, before.card.clone(), self.options())?;
        if let Some(library) = before.library {
            card.use_library(library)?;
        }
        Ok(card)
    }

    fn options(&self) -> CudaOptions {
        CudaOptions { graphs: self.cuda_graph == OnOff::On, tf32: self.tf32(), ..CudaOptions::default() }
    }
}

/// The card with this number, or the usable one with the most free memory.
/// Errors: why it, or the last of them, can't be used.
pub(super) fn open_card(index: Option<usize>, options: CudaOptions) -> Result<CudaDevice, CudaError> {
    let driver = Driver::find()?;
    if let Some(index) = index {
        return opened(driver, driver.card(index)?, options);
    }
    let mut best = None::<(Bytes, CudaDevice)>;
    let mut refused = CudaError::NoCards { visible: None };
    for card in driver.cards()? {
        let opened = opened(driver, card, options).and_then(|card| Ok((free_on(&card)?, card)));
        match opened {
            Ok((free, card)) if best.as_ref().is_none_or(|(most, _)| free > *most) => best = Some((free, card)),
            Ok(_) => {}
            Err(error) => refused = error,
        }
    }
    best.map(|(_, card)| card).ok_or(refused)
}

/// An open card, which says when its kernels are compiled.
fn opened(driver: &'static Driver, card: Card, options: CudaOptions) -> Result<CudaDevice, CudaError> {
    Ok(CudaDevice::open(driver, card, options)?.noticing_compilation(|kernels| talk(compiling(kernels))))
}

/// Why a start takes long.
fn compiling(kernels: usize) -> String {
    let is_off = std::env::var_os("CUDA_CACHE_DISABLE").is_some_and(|value| value == "1");
    let later = if is_off {
        "CUDA_CACHE_DISABLE=1 makes every start compile them"
    } else {
        "the driver keeps them for the next start"
    };
    format!("compiling {kernels} kernels for this GPU; {later}")
}

fn free_on(card: &CudaDevice) -> Result<Bytes, CudaError> {
    match card.room() {
        Ok(room) => Ok(room.map_or(Bytes::ZERO, |room| room.free)),
        Err(DeviceError::Cuda(error)) => Err(error),
        Err(other) => unreachable!("{other} of a card's driver"),
    }
}

/// The device of an open card for plans; the driver reports its memory.
fn of_card(opened: &CudaDevice, budget: &BudgetArgs, speed: Speed) -> Result<Device, Failure> {
    let card = opened.card();
    let free = free_on(opened).map_err(Failure::from)?;
    let used = card.memory.saturating_sub(free);
    let own = own_gpu_memory(&card.uuid).map_or(OwnUse::Unknown, OwnUse::Known);
    let presence = Presence::Here { uuid: card.uuid.clone(), used, own, drives_display: card.limits_kernels };
    let memory = CardMemory { name: card.name.clone(), total: card.memory, presence };
    let threads = budget.threads()?;
    let (machine, times) = speed_of(card, threads, speed)?;
    let device = Device::of_card(on_paper(card).0, budget.of_card(memory)?, threads, speed);
    let targets = Targets::cuda(card.compute_capability, threads).multiplying_by(speed.products);
    Ok(Device { name: card.name.clone(), targets, machine, times, ..device })
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Self {
        let message = line(&error);
        match &error {
            CudaError::NoDriver { .. } => {
                Self::device(message).hint(format!("{INSTALL}; `--device cpu` runs on the CPU"))
            }
            CudaError::DriverTooOld { needed: (major, minor), .. } => Self::device(message)
                .hint(format!("install a driver for CUDA {major}.{minor} or newer: {INSTALL}; `--device cpu` needs none")),
            CudaError::NoCards { visible } => Self::device(message).hint(match visible {
                Some(_) => "unset CUDA_VISIBLE_DEVICES, or set it to a GPU's number or UUID",
                None => "`nvidia-smi` shows whether the driver sees a GPU; one in MIG mode needs a slice first",
            }),
            CudaError::NoSuchCard { count, .. } => Self::bad_flag(message)
                .hint(format!("`--device cuda:{}` is the last; `plimsoll doctor` lists them all", count - 1)),
            CudaError::CardTooOld { .. } => Self::device(message).hint("`--device cpu` runs without a GPU"),
            CudaError::InUse { .. } => Self::device(message)
                .hint("`nvidia-smi` shows the process that uses it; `sudo nvidia-smi -c DEFAULT` lets several processes use it"),
            CudaError::Prohibited { .. } => {
                Self::device(message).hint("`sudo nvidia-smi -c DEFAULT` lets processes use it")
            }
            CudaError::NoRoomForDriver { uuid, .. } => Self::new(exit_code::DOES_NOT_FIT, message)
                .naming_holders(uuid)
                .hint("`nvidia-smi` shows the processes that use the GPU's memory; `--device cpu` needs no GPU"),
            CudaError::NoKernel { .. } => Self::device(message).hint("`--device cpu` has that kernel"),
            CudaError::ModuleRefused { .. } => {
                Self::device(message).hint("a newer driver may accept them; `plimsoll doctor` shows the installed one")
            }
            CudaError::CardFailed { fault, .. } => Self::device(message).of_kind(FailureKind::Device).hint(match fault {
                Fault::Memory => "the system's log names the error (`dmesg | grep Xid`); restart the machine",
                Fault::Kernel => "please report it as a bug of plimsoll, with this message",
                Fault::Timeout => {
                    "the system ends long kernels on a GPU that drives a display; they are split by their predicted times, which \
                     `plimsoll calibrate` measures; a smaller `--micro-batch` makes them shorter"
                }
                Fault::Lost => "the system's log has the reason (`dmesg | grep Xid`); restart the machine",
            }),
            CudaError::CublasLt(_) => Self::device(message).hint("`--cublas off` uses the built-in kernels"),
            CudaError::Call(_) => Self::device(message).hint("`plimsoll doctor` shows the driver and its GPUs"),
        }
    }
}

impl Opened {
    /// An open card, with its free memory now. Errors: nothing is left of its memory.
    pub(super) fn of(
        mut card: CudaDevice,
        budget: &BudgetArgs,
        tf32: bool,
        measured: Option<&Path>,
    ) -> Result<Self, Failure> {
        let speed = Speed { tf32, products: products_of(&card), measured };
        let device = of_card(&card, budget, speed)?;
        card.set_speed(&device.machine);
        Ok(Self { device, card: Some(card), tf32, products: ProductSettings::default() })
    }

    /// What is needed to open the card again; `None` for the processor.
    pub(super) fn reopening(&self) -> Option<Reopening> {
        let card = self.card.as_ref()?;
        Some(Reopening { card: card.card().clone(), library: card.library(), products: self.products.clone() })
    }

    /// The card's UUID, as NVML reports it; `None` for the processor.
    pub(super) fn uuid(&self) -> Option<String> {
        self.card.as_ref().map(|card| card.card().uuid.clone())
    }

    /// Chooses the algorithms of its products: those of a resumed run, and for other products by timing if requested.
    pub(super) fn choose_products(&mut self, kept: Option<ProductChoices>, autotune: bool) {
        if let Some(card) = &mut self.card {
            card.set_autotune(autotune);
            kept.iter().for_each(|kept| card.keep_products(kept.clone()));
        }
        self.products = ProductSettings { kept, autotune };
    }

    /// The data sheet of the card, or of the most similar one; `None` for the processor.
    pub(super) fn on_paper(&self) -> Option<&'static PaperCard> {
        self.card.as_ref().map(|opened| on_paper(opened.card()).0)
    }

    /// Checks that the host has the memory that a plan needs. Errors: it has not.
    pub(super) fn check_free(&self, budget: &BudgetArgs, plan: &Plan) -> Result<(), Failure> {
        match self.card {
            None => budget.check_free(plan),
            Some(_) => budget.check_room(plan.host()),
        }
    }

    /// The device for a plan. `budget` sets the memory to leave free on the host.
    pub(super) fn into_device(self, budget: &BudgetArgs) -> Box<dyn plimsoll_exec::Device> {
        match self.card {
            None => processor(budget.vram_margin),
            Some(card) => Box::new(card.within(free_memory(None)).measured_by(own_gpu_memory)),
        }
    }
}
