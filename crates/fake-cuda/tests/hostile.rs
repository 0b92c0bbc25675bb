//! For any text the parser returns, and for any program that it accepts the interpreter ends.

mod support;

use plimsoll_fake_cuda::ptx::parse;
use plimsoll_fake_cuda::ptx::run::{self, Launch, RunSettings};
use plimsoll_fake_cuda::shadow::Memory;
use proptest::prelude::*;

/// Parses a text and runs its kernels; the result is ignored.
fn survive(text: &str) {
    let Ok(module) = parse(text) else { return };
    let settings = RunSettings { steps: 2_000, ..RunSettings::default() };
    for kernel in &module.kernels {
        let mut memory = Memory::default();
        let base = memory.allocate(4096);
        memory.write(base, &[1; 4096]).unwrap();
        let mut parameters = base.to_le_bytes().repeat(kernel.parameter_bytes.div_ceil(8) as usize);
        parameters.truncate(kernel.parameter_bytes as usize);
        let launch = Launch { grid: [2, 1, 1], block: [40, 1, 1], dynamic_shared: 64, parameters: &parameters };
        let _ = run::launch(kernel, &launch, &settings, &mut memory, &module.files);
    }
}

const WORDS: &[&str] = &[
    ".version",
    "7.0",
    "8.4",
    ".target",
    "sm_80",
    "sm_89",
    ".visible",
    ".entry",
    "k",
    "(",
    ")",
    "{",
    "}",
    ";",
    ",",
    "[",
    "]",
    ":",
    "@",
    "!",
    "|",
    "<",
    ">",
    "=",
    "-",
    "+",
    ".param",
    ".u64",
    ".b8",
    "a",
    ".reg",
    ".b32",
    ".pred",
    "%r",
    "%r1",
    "%p1",
    "%tid.x",
    ".shared",
    ".local",
    ".align",
    "16",
    "0",
    "4294967295",
    "0f3F800000",
    "99999999999999999999",
    "mov.u32",
    "add.s32",
    "ld.global.v4.f32",
    "st.shared.u8",
    "bar.sync",
    "bra",
    "$L",
    "shfl.sync.bfly.b32",
    "setp.lt.and.s32",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
    ".loc 1 2 3\n",
    "cp.async.ca.shared.global",
    "cp.async.wait_all",
    "ret",
    "_",
    "\"x\"",
    ".file",
    "1",
    "/*",
    "*/",
    "//\n",
    "\n",
    "é",
    "cvt.rn.bf16x2.f32",
    "cvt.rn.satfinite.e4m3x2.f32",
    "atom.global.cas.b64",
    ".const",
    ".extern",
    ".maxntid",
    "cvta.to.shared.u64",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 2))]

    #[test]
    fn any_text_is_handled(text in any::<String>()) {
        survive(&text);
    }

    #[test]
    fn any_words_are_handled(words in prop::collection::vec(prop::sample::select(WORDS), 0..60)) {
        survive(&words.join(" "));
        survive(&format!(".version 8.4 .target sm_89 .entry k(.param .u64 a) {{ .reg .b32 %r<4>; {} }}", words.join(" ")));
    }

    #[test]
    fn a_changed_kernel_is_handled(at in 0usize..13_000, with in prop::sample::select(WORDS), cut in 0usize..12) {
        let text = support::text("../exec/kernels/ptx/sm_80/add.ptx");
        let start = (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let end = (start + cut).min(text.len());
        survive(&format!("{} {with} {}", &text[..start], &text[end..]));
    }
}
