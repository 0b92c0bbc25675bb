//! Short PTX texts: results of warp instructions per lane, faults, and statements that are refused by name.

mod support;

use plimsoll_fake_cuda::ptx::run::{Fault, FaultKind};
use plimsoll_fake_cuda::ptx::{ParseErrorKind, parse};
use plimsoll_fake_cuda::shadow::{Outside, Problem};
use support::{Argument, Card, ORDERS};

/// A kernel of one warp whose body leaves its result in %x, which every thread stores.
fn wrapped(body: &str) -> String {
    format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out)\n{{\n\
         .reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<16>;\n.reg .b64 %d<8>;\n.reg .b32 %x, %lane;\n\
         .shared .align 16 .b8 tile[1024];\n.local .align 8 .b8 own[16];\n\
         mov.u32 %lane, %tid.x;\n{body}\n\
         ld.param.u64 %d6, [out];\ncvta.to.global.u64 %d6, %d6;\nmul.wide.u32 %d7, %lane, 4;\nadd.s64 %d6, %d6, %d7;\n\
         st.global.u32 [%d6], %x;\nret;\n}}\n"
    )
}

fn run(body: &str, threads: u32) -> Result<Vec<u32>, Box<Fault>> {
    let module = parse(&wrapped(body)).unwrap_or_else(|error| panic!("{error}\n{body}"));
    let mut card = Card::default();
    card.settings.steps = 10_000;
    let out = card.room(4 * threads as usize);
    card.launch(&module, "k", (1, threads, 0), &[Argument::Address(out)])?;
    let bytes = card.get(out, 4 * threads as usize);
    Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
}

/// Results of a body in lanes 0, 1, 5 and 31.
const EXAMPLES: &[(&str, [u32; 4])] = &[
    ("shfl.sync.bfly.b32 %x, %lane, 1, 31, -1;", [1, 0, 4, 30]),
    ("shfl.sync.up.b32 %x|%p1, %lane, 1, 0, -1;", [0, 0, 4, 30]),
    ("shfl.sync.down.b32 %x|%p1, %lane, 4, 31, -1;\n@!%p1 mov.u32 %x, 99;", [4, 5, 9, 99]),
    ("shfl.sync.idx.b32 %x, %lane, 2, 6175, -1;", [2, 2, 2, 26]),
    ("activemask.b32 %x;", [u32::MAX; 4]),
    ("setp.lt.u32 %p1, %lane, 4;\nvote.sync.ballot.b32 %x, %p1, -1;", [15; 4]),
    ("setp.lt.u32 %p1, %lane, 4;\nvote.sync.any.pred %p2, %p1, -1;\nselp.b32 %x, 1, 0, %p2;", [1; 4]),
    ("setp.lt.u32 %p1, %lane, 4;\nvote.sync.all.pred %p2, !%p1, -1;\nselp.b32 %x, 1, 0, %p2;", [0; 4]),
    ("shr.u32 %r1, %lane, 1;\nmatch.any.sync.b32 %x, %r1, -1;", [3, 3, 0x30, 0xC000_0000]),
    ("redux.sync.add.s32 %x, %lane, -1;", [496; 4]),
    ("redux.sync.max.u32 %x, %lane, -1;", [31; 4]),
    ("setp.lt.u32 %p1, %lane, 4;\nsetp.eq.and.u32 %p2|%p3, %lane, 1, %p1;\nselp.b32 %x, 7, 8, %p3;", [7, 8, 8, 8]),
    ("mov.b32 %r1, 0x12345678;\nmov.b32 {%h1, %h2}, %r1;\nmov.b32 %x, {%h2, %h1};", [0x5678_1234; 4]),
    ("cvt.rn.f32.u32 %r1, %lane;\ncvt.rn.bf16x2.f32 %x, %r1, %r1;", [0, 0x3f80_3f80, 0x40a0_40a0, 0x41f8_41f8]),
    ("mov.b32 %r1, -1;\ncvt.s16.s32 %h1, %r1;\ncvt.s32.s16 %x, %h1;", [u32::MAX; 4]),
    // Lanes diverge and reconverge.
    (
        "mov.u32 %x, 1;\nsetp.lt.u32 %p1, %lane, 4;\n@%p1 bra $small;\nmov.u32 %x, 2;\nbra.uni $both;\n$small:\n\
         mov.u32 %x, 3;\n$both:\nshfl.sync.idx.b32 %x, %x, 0, 31, -1;",
        [3; 4],
    ),
    // A loop whose length is the lane's index.
    (
        "mov.u32 %x, 0;\nmov.u32 %r1, 0;\n$again:\nsetp.ge.u32 %p1, %r1, %lane;\n@%p1 bra $done;\n\
         add.u32 %x, %x, %r1;\nadd.u32 %r1, %r1, 1;\nbra.uni $again;\n$done:",
        [0, 0, 10, 465],
    ),
    // Vectors in shared memory, through a generic address.
    (
        "mov.u32 %r1, tile;\nmad.lo.u32 %r2, %lane, 8, %r1;\nst.shared.v2.u32 [%r2], {%lane, 5};\nbar.warp.sync -1;\n\
         xor.b32 %r3, %lane, 1;\nmul.wide.u32 %d1, %r3, 8;\nmov.u64 %d2, tile;\ncvta.shared.u64 %d2, %d2;\n\
         add.s64 %d1, %d1, %d2;\nld.u32 %x, [%d1];",
        [1, 0, 4, 30],
    ),
    ("mov.u64 %d1, own;\ncvta.local.u64 %d2, %d1;\nst.u32 [%d2+4], %lane;\nld.local.u32 %x, [%d1+4];", [0, 1, 5, 31]),
    (
        "setp.eq.u32 %p1, %lane, 0;\n@%p1 st.shared.u32 [tile], 0;\nbar.sync 0;\natom.shared.add.u32 %x, [tile], 2;",
        [0, 2, 10, 62],
    ),
    // A matrix whose elements are their own indices, by rows and by columns.
    (
        "mad.lo.u32 %r1, %lane, 0x20002, 0x10000;\nmov.u32 %r2, tile;\nmad.lo.u32 %r3, %lane, 4, %r2;\n\
         st.shared.u32 [%r3], %r1;\nbar.warp.sync -1;\nand.b32 %r4, %lane, 7;\nmad.lo.u32 %r4, %r4, 16, %r2;\n\
         ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%x}, [%r4];",
        [0x1_0000, 0x3_0002, 0xb_000a, 0x3f_003e],
    ),
    (
        "mad.lo.u32 %r1, %lane, 0x20002, 0x10000;\nmov.u32 %r2, tile;\nmad.lo.u32 %r3, %lane, 4, %r2;\n\
         st.shared.u32 [%r3], %r1;\nbar.warp.sync -1;\nand.b32 %r4, %lane, 7;\nmad.lo.u32 %r4, %r4, 16, %r2;\n\
         ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%x}, [%r4];",
        [0x8_0000, 0x18_0010, 0x19_0011, 0x3f_0037],
    ),
    // Ones times columns that hold their own index: 8 of them, 16 of them.
    (
        "shr.u32 %r1, %lane, 2;\ncvt.rn.f32.u32 %r1, %r1;\ncvt.rn.f16x2.f32 %r1, %r1, %r1;\nmov.u32 %r2, 0x3c003c00;\n\
         mov.u32 %r3, 0;\nmma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%r4, %r5, %r6, %r7}, {%r2, %r2}, {%r1}, \
         {%r3, %r3, %r3, %r3};\ncvt.rni.u32.f32 %x, %r7;",
        [8, 24, 24, 56],
    ),
    (
        "shr.u32 %r1, %lane, 2;\ncvt.rn.f32.u32 %r1, %r1;\ncvt.rn.bf16x2.f32 %r1, %r1, %r1;\nmov.u32 %r2, 0x3f803f80;\n\
         mov.u32 %r3, 0;\nmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r4, %r5, %r6, %r7}, \
         {%r2, %r2, %r2, %r2}, {%r1, %r1}, {%r3, %r3, %r3, %r3};\ncvt.rni.u32.f32 %x, %r4;",
        [0, 32, 32, 96],
    ),
    // Ties of TF32's bits are rounded away from zero; NaN and infinity do not change.
    (
        "cvt.rn.f32.u32 %r1, %lane;\nfma.rn.f32 %r2, %r1, 0f3A000000, 0f3F800000;\nneg.f32 %r2, %r2;\n\
         cvt.rna.tf32.f32 %x, %r2;",
        [0xbf80_0000, 0xbf80_2000, 0xbf80_6000, 0xbf82_0000],
    ),
    ("mov.b32 %r1, 0f7F800000;\ncvt.rna.tf32.f32 %x, %r1;", [0x7f80_0000; 4]),
    // TF32: the left factor has 1 in column 0 and 8 in column 4; the right one has its row and column numbers.
    (
        "and.b32 %r1, %lane, 3;\nsetp.eq.u32 %p1, %r1, 0;\nselp.b32 %r2, 0x3f800000, 0, %p1;\n\
         selp.b32 %r3, 0x41000000, 0, %p1;\nshr.u32 %r4, %lane, 2;\ncvt.rn.f32.u32 %r4, %r4;\n\
         add.u32 %r5, %r1, 1;\ncvt.rn.f32.u32 %r5, %r5;\nmov.u32 %r6, 0;\n\
         mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r7, %r8, %r9, %r10}, {%r2, %r6, %r3, %r2}, {%r4, %r5}, \
         {%r6, %r6, %r6, %r5};\nadd.f32 %x, %r8, %r10;\ncvt.rni.u32.f32 %x, %x;",
        [11, 14, 14, 20],
    ),
    // The last 13 bits of a number that is not rounded to TF32 are ignored.
    (
        "mov.b32 %r1, 0x3f801fff;\nmov.u32 %r2, 0;\n\
         mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%x, %r4, %r5, %r6}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, \
         {%r2, %r2, %r2, %r2};",
        [0x4100_0000; 4],
    ),
    // Philox's product: the upper half.
    ("mul.hi.u32 %x, %lane, -766435501;", [0, 0, 4, 25]),
];

#[test]
fn warp_instructions_follow_the_isa() {
    for (body, expected) in EXAMPLES {
        let got = run(body, 32).unwrap_or_else(|fault| panic!("{fault}\n{body}"));
        assert_eq!([0, 1, 5, 31].map(|lane: usize| got[lane]), *expected, "{body}");
    }
}

type Is = fn(&FaultKind) -> bool;

/// Threads, a body, and the fault that it causes.
const FAULTS: &[(u32, &str, Is)] = &[
    (32, "add.u32 %x, %r1, 1;", |kind| matches!(kind, FaultKind::Register(name) if name == "%r1")),
    (32, "setp.eq.u32 %p1, %lane, 3;\n@%p1 mov.u32 %r1, 0;\nmov.u32 %x, %r1;", |kind| {
        matches!(kind, FaultKind::Register(_))
    }),
    (32, "ld.shared.u32 %x, [tile];", |kind| matches!(kind, FaultKind::Memory(Problem::Unwritten))),
    (32, "ld.local.u32 %x, [own];", |kind| matches!(kind, FaultKind::Memory(Problem::Unwritten))),
    (32, "st.shared.u32 [tile+1024], 1;", |kind| matches!(kind, FaultKind::SpaceBounds { bytes: 1024, .. })),
    (32, "st.shared.u32 [tile+2], 1;", |kind| matches!(kind, FaultKind::Misaligned { bytes: 4, .. })),
    (32, "mov.u64 %d1, 64;\nld.global.u32 %x, [%d1];", |kind| matches!(kind, FaultKind::Bounds(Outside::Nowhere))),
    // Two lanes of a warp, without a barrier.
    (32, "st.shared.u32 [tile], %lane;\nmov.u32 %x, 0;", |kind| {
        matches!(kind, FaultKind::Memory(Problem::Race { wrote: true, .. }))
    }),
    // Two warps: one reads what the other one writes.
    (
        64,
        "setp.eq.u32 %p1, %lane, 0;\n@%p1 st.shared.u32 [tile], 7;\nbar.warp.sync -1;\nld.shared.u32 %x, [tile];",
        |kind| matches!(kind, FaultKind::Memory(Problem::Race { .. } | Problem::Unwritten)),
    ),
    (64, "setp.lt.u32 %p1, %lane, 40;\n@%p1 bra $out;\nbar.sync 0;\n$out:\nmov.u32 %x, 0;", |kind| {
        matches!(kind, FaultKind::Divergent { .. })
    }),
    (64, "setp.lt.u32 %p1, %lane, 32;\n@%p1 exit;\nbar.sync 0;\nmov.u32 %x, 0;", |kind| {
        matches!(kind, FaultKind::LeavesBarrier)
    }),
    (32, "$again:\nbra.uni $again;\nmov.u32 %x, 0;", |kind| matches!(kind, FaultKind::Steps(10_000))),
    (32, "trap;\nmov.u32 %x, 0;", |kind| matches!(kind, FaultKind::Trap)),
    (32, "setp.lt.u32 %p1, %lane, 4;\n@%p1 shfl.sync.bfly.b32 %x, %lane, 1, 31, -1;\nmov.u32 %x, 0;", |kind| {
        matches!(kind, FaultKind::Divergent { here: 15, .. })
    }),
    (16, "shfl.sync.idx.b32 %x, %lane, 20, 31, -1;", |kind| matches!(kind, FaultKind::AbsentLane(20))),
    (32, "ld.param.u64 %d1, [out];\nst.global.v4.u32 [%d1], {0, 0, 0, 0};\nmov.u32 %x, 0;", |kind| {
        matches!(kind, FaultKind::Memory(Problem::Race { .. }))
    }),
    (
        32,
        "setp.ne.u32 %p1, %lane, 0;\n@%p1 bra $skip;\nld.param.u64 %d1, [out];\nst.global.u32 [%d1], 0;\n\
         mov.u32 %r1, tile;\ncp.async.ca.shared.global [%r1], [%d1], 4;\n$skip:\nmov.u32 %x, 0;",
        |kind| matches!(kind, FaultKind::LeavesCopies),
    ),
];

#[test]
fn faults_are_found() {
    for (threads, body, is) in FAULTS {
        let fault = run(body, *threads).expect_err(body);
        assert!(is(&fault.kind), "{fault}\n{body}");
        assert!(fault.source.starts_with("PTX line ") && !fault.text.is_empty(), "{fault}");
    }
}

#[test]
fn barriers_do_not_order_blocks() {
    let text = wrapped("mov.u32 %x, 1;\nbar.sync 0;");
    let module = parse(&text).unwrap();
    for order in ORDERS {
        let mut card = Card::with(order, 0);
        let out = card.room(128);
        let fault = card.launch(&module, "k", (2, 32, 0), &[Argument::Address(out)]).expect_err("two blocks write");
        assert!(matches!(fault.kind, FaultKind::Memory(Problem::Race { .. })), "{fault}");
    }
}

/// Statements that are refused, and the text in the error.
const REFUSED: &[(&str, &str)] = &[
    ("bar.sync 1;", "bar.sync 1"),
    ("bar.arrive 0, 32;", "bar.arrive 0, 32"),
    ("call.uni foo;", "call.uni foo"),
    ("add.cc.u32 %x, %lane, 1;", "add.cc.u32 %x, %lane, 1"),
    ("add.rz.f32 %x, %lane, %lane;", "add.rz.f32 %x, %lane, %lane"),
    ("ex2.f32 %x, %lane;", "ex2.f32 %x, %lane"),
    ("sqrt.f32 %x, %lane;", "sqrt.f32 %x, %lane"),
    ("cvt.rn.tf32.f32 %x, %lane;", "cvt.rn.tf32.f32 %x, %lane"),
    ("cvt.rna.f16.f32 %h1, %lane;", "cvt.rna.f16.f32 %h1, %lane"),
    ("cvt.rna.tf32.f64 %x, %d1;", "cvt.rna.tf32.f64 %x, %d1"),
    ("cvt.rna.satfinite.tf32.f32 %x, %lane;", "cvt.rna.satfinite.tf32.f32 %x, %lane"),
    (
        "mma.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32 {%x, %x, %x, %x}, {%x, %x, %x, %x}, {%x, %x}, {%x, %x, %x, %x};",
        "mma.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32 {%x, %x, %x, %x}, {%x, %x, %x, %x}, {%x, %x}, {%x, %x, %x, %x}",
    ),
    (
        "mma.sync.aligned.m16n8k8.col.row.f32.tf32.tf32.f32 {%x, %x, %x, %x}, {%x, %x, %x, %x}, {%x, %x}, {%x, %x, %x, %x};",
        "mma.sync.aligned.m16n8k8.col.row.f32.tf32.tf32.f32 {%x, %x, %x, %x}, {%x, %x, %x, %x}, {%x, %x}, {%x, %x, %x, %x}",
    ),
    (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {%x, %x, %x, %x}, {%x, %x, %x, %x}, {%x, %x}, {%x, %x, %x, %x};",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {%x, %x, %x, %x}, {%x, %x, %x, %x}, {%x, %x}, {%x, %x, %x, %x}",
    ),
    ("tex.2d.v4.f32.f32 %x, %lane;", "tex.2d.v4.f32.f32 %x, %lane"),
    ("ld.global.v4.u64 %d1, [%d2];", "ld.global.v4.u64 %d1, [%d2]"),
    ("mov.u32 %x, %clock;", "%clock"),
    ("mov.u32 %x, missing;", "mov.u32 %x, missing"),
    ("bra $nowhere;", "$nowhere"),
];

#[test]
fn unknown_statements_are_refused_by_name() {
    for (body, name) in REFUSED {
        let error = parse(&wrapped(body)).expect_err(body);
        let known = match &error.kind {
            ParseErrorKind::Unsupported(what) | ParseErrorKind::Unknown(what) => what == name,
            ParseErrorKind::Expected(_) => *name == "mov.u32 %x, missing",
            _ => false,
        };
        assert!(known, "{body}: {error}");
    }
    let error = parse(".version 7.0\n.target sm_80\n.func foo() { ret; }").expect_err("a function");
    assert_eq!(error.to_string(), "PTX line 3: unsupported: `.func`");
}
