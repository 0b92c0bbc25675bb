//! Products of 8-bit floats by the stand-in for cuBLASLt: results against plain arithmetic, and everything that the real
//! library refuses.

mod calls;
mod support;

use calls::{Call, Machine};
use plimsoll_fake_cuda::driver::codes;
use plimsoll_fake_cuda::ptx::lanes::{e4m3_bits, e5m2_bits};
use std::ffi::{c_int, c_void};
use support::Number;

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: u32,
    waves: f32,
    reserved: [c_int; 4],
}

unsafe extern "C" {
    fn cublasLtCreate(to: *mut u64) -> u32;
    fn cublasLtMatmulDescCreate(to: *mut u64, compute: c_int, scale: c_int) -> u32;
    fn cublasLtMatmulDescSetAttribute(at: u64, which: c_int, value: *const c_void, bytes: usize) -> u32;
    fn cublasLtMatrixLayoutCreate(to: *mut u64, kind: c_int, rows: u64, columns: u64, stride: i64) -> u32;
    fn cublasLtMatmulPreferenceCreate(to: *mut u64) -> u32;
    fn cublasLtMatmulPreferenceSetAttribute(at: u64, which: c_int, value: *const c_void, bytes: usize) -> u32;
    fn cublasLtMatmulAlgoGetHeuristic(
        handle: u64,
        description: u64,
        a: u64,
        b: u64,
        c: u64,
        d: u64,
        preference: u64,
        asked: c_int,
        to: *mut Heuristic,
        count: *mut c_int,
    ) -> u32;
    fn cublasLtMatmulAlgoCheck(
        handle: u64,
        description: u64,
        a: u64,
        b: u64,
        c: u64,
        d: u64,
        algorithm: *const [u64; 8],
        to: *mut Heuristic,
    ) -> u32;
    fn cublasLtMatmul(
        handle: u64,
        description: u64,
        alpha: *const f32,
        a: u64,
        a_layout: u64,
        b: u64,
        b_layout: u64,
        beta: *const f32,
        c: u64,
        c_layout: u64,
        d: u64,
        d_layout: u64,
        algorithm: *const [u64; 8],
        workspace: u64,
        workspace_bytes: usize,
        stream: u64,
    ) -> u32;
}

const INVALID_VALUE: u32 = 7;
const NOT_SUPPORTED: u32 = 15;

/// `cudaDataType_t`
const F32: c_int = 0;
const F16: c_int = 2;
const BF16: c_int = 14;
const E4M3: c_int = 28;
const E5M2: c_int = 29;

/// `cublasLtMatmulDescAttributes_t`
const EPILOGUE: c_int = 7;
const BIAS: c_int = 8;
const SCALE_A: c_int = 17;
const SCALE_B: c_int = 18;

/// Converts a status to a result.
fn of(status: u32) -> Call {
    if status == 0 { Ok(()) } else { Err(status) }
}

/// Returns the handle that a function writes to a pointer.
fn made(create: impl FnOnce(*mut u64) -> u32) -> Call<u64> {
    let mut handle = 0;
    of(create(&mut handle)).map(|()| handle)
}

/// What the library is asked for: D = alpha · op(A) · op(B) + beta · C.
#[derive(Debug, Clone, Copy)]
struct Request {
    /// Of A, B, and both C and D.
    types: [c_int; 3],
    /// Rows and columns of D, and inner.
    extents: [u64; 3],
    /// Elements from column to column of A, B and D.
    strides: [i64; 3],
    /// Whether A and B are transposed.
    transposed: [bool; 2],
    /// `cublasComputeType_t`
    compute: c_int,
    /// Alignment of the addresses, in bytes.
    alignment: u32,
    /// Further attributes of the description.
    attributes: [(c_int, u64); 4],
}

/// An attribute that is not set.
const NONE: (c_int, u64) = (-1, 0);

/// A request that the library accepts.
const ACCEPTED: Request = Request {
    types: [E4M3, E4M3, F32],
    extents: [20, 5, 32],
    strides: [48, 32, 24],
    transposed: [true, false],
    compute: 68,
    alignment: 16,
    attributes: [NONE; 4],
};

/// The library's objects for a request.
struct Objects {
    library: u64,
    description: u64,
    layouts: [u64; 3],
    preference: u64,
}

impl Request {
    /// Describes the product. Errors: the library's.
    fn describe(&self) -> Call<Objects> {
        let Self { types, extents: [rows, columns, inner], strides, transposed, compute, alignment, attributes } =
            *self;
        let shape =
            |[rows, columns]: [u64; 2], is_transposed| if is_transposed { [columns, rows] } else { [rows, columns] };
        let shapes = [shape([rows, inner], transposed[0]), shape([inner, columns], transposed[1]), [rows, columns]];
        // SAFETY: places for handles are on this stack, as are values, which have the given number of bytes.
        unsafe {
            let library = made(|to| cublasLtCreate(to))?;
            let description = made(|to| cublasLtMatmulDescCreate(to, compute, F32))?;
            for (which, is_transposed) in [3, 4].into_iter().zip(transposed) {
                let value = c_int::from(is_transposed);
                of(cublasLtMatmulDescSetAttribute(description, which, (&raw const value).cast(), 4))?;
            }
            for (which, value) in attributes.into_iter().filter(|attribute| *attribute != NONE) {
                let bytes = if which == EPILOGUE { 4 } else { 8 };
                of(cublasLtMatmulDescSetAttribute(description, which, (&raw const value).cast(), bytes))?;
            }
            let mut layouts = [0; 3];
            for (place, layout) in layouts.iter_mut().enumerate() {
                let [rows, columns] = shapes[place];
                *layout = made(|to| cublasLtMatrixLayoutCreate(to, types[place], rows, columns, strides[place]))?;
            }
            let preference = made(|to| cublasLtMatmulPreferenceCreate(to))?;
            for which in 5..=8 {
                of(cublasLtMatmulPreferenceSetAttribute(preference, which, (&raw const alignment).cast(), 4))?;
            }
            Ok(Objects { library, description, layouts, preference })
        }
    }

    /// The algorithms without a workspace that the library has, its favorite first. Errors: the library's.
    fn algorithms(&self) -> Call<Vec<[u64; 8]>> {
        let Objects { library, description, layouts: [a, b, d], preference } = self.describe()?;
        let (mut found, mut count) = ([Heuristic::default(); 4], 0);
        // SAFETY: places for results are on this stack.
        of(unsafe {
            let to = found.as_mut_ptr();
            cublasLtMatmulAlgoGetHeuristic(library, description, a, b, d, d, preference, 4, to, &mut count)
        })?;
        Ok(found[..count as usize].iter().map(|heuristic| heuristic.algorithm).collect())
    }

    /// Checks an algorithm. Errors: the library's.
    fn check(&self, algorithm: &[u64; 8]) -> Call {
        let Objects { library, description, layouts: [a, b, d], .. } = self.describe()?;
        let mut result = Heuristic::default();
        // SAFETY: the place for the result is on this stack.
        of(unsafe { cublasLtMatmulAlgoCheck(library, description, a, b, d, d, algorithm, &mut result) })
    }

    /// Enqueues the product of matrices at these addresses with an algorithm. Errors: the library's.
    fn start(&self, algorithm: &[u64; 8], [alpha, beta]: [f32; 2], [a, b, d]: [u64; 3], stream: u64) -> Call {
        let Objects { library, description, layouts: [of_a, of_b, of_d], .. } = self.describe()?;
        // SAFETY: alpha and beta are on this stack.
        of(unsafe {
            cublasLtMatmul(
                library,
                description,
                &alpha,
                a,
                of_a,
                b,
                of_b,
                &beta,
                d,
                of_d,
                d,
                of_d,
                algorithm,
                0,
                0,
                stream,
            )
        })
    }
}

/// A card that has 8-bit floats.
const ADA: &str = "card=rtx4090";

/// A small whole number for an element, which all types represent exactly.
fn element(row: u64, column: u64, seed: u64) -> f64 {
    ((row * 31 + column * 17 + seed * 7 + row * column) % 9) as f64 - 4.0
}

/// The bytes of numbers in a type.
fn encoded(kind: c_int, numbers: &[f64]) -> Vec<u8> {
    match kind {
        F32 => Number::F32.bytes(numbers),
        F16 => Number::F16.bytes(numbers),
        BF16 => Number::Bf16.bytes(numbers),
        E4M3 => numbers.iter().map(|x| e4m3_bits(*x)).collect(),
        E5M2 => numbers.iter().map(|x| e5m2_bits(*x)).collect(),
        other => panic!("type {other}"),
    }
}

/// Writes a matrix with this many columns, with gaps between them, to the card. The gaps hold an impossible number.
fn put(
    machine: &Machine,
    (kind, stride): (c_int, i64),
    [rows, columns]: [u64; 2],
    of: impl Fn(u64, u64) -> f64,
) -> u64 {
    let at = |column: u64| (0..stride as u64).map(move |row| (row, column));
    let value = |(row, column)| if row < rows { of(row, column) } else { 99.0 };
    let bytes = encoded(kind, &(0..columns).flat_map(at).map(value).collect::<Vec<_>>());
    let address = machine.alloc(bytes.len()).expect("memory");
    machine.write(address, &bytes).expect("allocated");
    address
}

/// Writes numbers to the card.
fn put_numbers(machine: &Machine, kind: c_int, numbers: &[f64]) -> u64 {
    put(machine, (kind, numbers.len() as i64), [numbers.len() as u64, 1], |index, _| numbers[index as usize])
}

#[test]
fn products_are_scaled_and_rounded_once() {
    // Types, scales of A and B, if set, whether there is a bias, and beta.
    let types = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)];
    let scales = [[None, None], [Some(3.0), None], [None, Some(0.25)], [Some(-1.5), Some(5.0)]];
    for (of_a, of_b) in types {
        for (of_d, [scale_a, scale_b]) in [F32, F16, BF16].into_iter().flat_map(|of_d| scales.map(|two| (of_d, two))) {
            for (has_bias, beta) in [(false, 0.0), (true, 0.0), (false, -2.0), (true, 1.0)] {
                let machine = Machine::of(ADA);
                let [rows, columns, inner] = [24, 5, 32];
                let mut request = Request { types: [of_a, of_b, of_d], extents: [rows, columns, inner], ..ACCEPTED };
                // A bias has the result's type, or bf16 if that is single precision.
                let of_bias = if of_d == F32 { BF16 } else { of_d };
                let biases = (0..rows).map(|row| element(row, 3, 4)).collect::<Vec<_>>();
                if has_bias {
                    request.attributes[0] = (EPILOGUE, 4);
                    request.attributes[1] = (BIAS, put_numbers(&machine, of_bias, &biases));
                }
                // One of the unset scales is set to null.
                let scale = |scale: Option<f64>| scale.map_or(0, |scale| put_numbers(&machine, F32, &[scale]));
                request.attributes[2] = (SCALE_A, scale(scale_a));
                request.attributes[3] = if scale_b.is_some() { (SCALE_B, scale(scale_b)) } else { NONE };
                let [stride_a, stride_b, stride_d] = request.strides;
                // A's columns are the rows of the product.
                let a = put(&machine, (of_a, stride_a), [inner, rows], |k, row| element(row, k, 1));
                let b = put(&machine, (of_b, stride_b), [inner, columns], |k, column| element(k, column, 2));
                let before = |row, column| element(row, column, 3);
                let d = put(&machine, (of_d, stride_d), [rows, columns], before);
                let factor = 0.5 * scale_a.unwrap_or(1.0) * scale_b.unwrap_or(1.0);
                let expected = |row: u64, column: u64| {
                    let sum = (0..inner).map(|k| element(row, k, 1) * element(k, column, 2)).sum::<f64>();
                    let bias = if has_bias { biases[row as usize] } else { 0.0 };
                    factor * sum + beta * before(row, column) + bias
                };
                let algorithm = request.algorithms().expect("a supported product")[0];
                request.check(&algorithm).expect("its own algorithm");
                request.start(&algorithm, [0.5, beta as f32], [a, b, d], 0).expect("starts");
                machine.synchronize().unwrap_or_else(|code| panic!("{code}: {}", machine.failure()));
                let bytes = put(&machine, (of_d, stride_d), [rows, columns], expected);
                let size = encoded(of_d, &[0.0]).len() * stride_d as usize * columns as usize;
                let [got, expected] = [d, bytes].map(|address| machine.read(address, size).expect("written"));
                assert_eq!(got, expected, "{request:?} {scale_a:?} {scale_b:?} {has_bias} {beta}");
            }
        }
    }
}

/// The accepted product of ones with scales at these addresses: the request, an algorithm, and the addresses of A, B and D.
fn ones(machine: &Machine, [scale_a, scale_b]: [u64; 2]) -> (Request, [u64; 8], [u64; 3]) {
    let request = Request { attributes: [(SCALE_A, scale_a), (SCALE_B, scale_b), NONE, NONE], ..ACCEPTED };
    let Request { types, extents: [rows, columns, inner], strides, .. } = request;
    let shapes = [[inner, rows], [inner, columns], [rows, columns]];
    let matrix = |place: usize| put(machine, (types[place], strides[place]), shapes[place], |_, _| 1.0);
    // An algorithm does not depend on the addresses of scales.
    (request, ACCEPTED.algorithms().expect("accepted")[0], [0, 1, 2].map(matrix))
}

/// What is wrong with a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    Unwritten,
    NotAnnounced,
    WrittenByAnotherStream,
}

/// Runs the accepted product with a faulty scale of A (0) or B (1). Returns the code, and the failure's message.
fn run_with(fault: Fault, place: usize) -> (u32, String) {
    let machine = Machine::of(ADA);
    let two = 2f32.to_le_bytes();
    let scales = [0, 1].map(|index| {
        let address = machine.alloc(4).expect("memory");
        if index != place || fault != Fault::Unwritten {
            machine.write(address, &two).expect("allocated");
        }
        address
    });
    let (request, algorithm, addresses) = ones(&machine, scales);
    let (copies, compute) = (machine.stream(), machine.stream());
    if fault == Fault::WrittenByAnotherStream {
        let pinned = machine.pinned(4);
        // SAFETY: 4 bytes were just allocated, and no other code uses them.
        unsafe { std::slice::from_raw_parts_mut(pinned.cast::<u8>(), 4) }.copy_from_slice(&two);
        machine.copy_to(scales[place], pinned.cast(), 4, copies).expect("enqueued");
    }
    machine.allow(0, 0, 0).expect("begins");
    for (address, bytes) in addresses.into_iter().zip([48 * 20, 32 * 5, 24 * 5 * 4]) {
        machine.allow(address, bytes, 3).expect("announced");
    }
    for (index, address) in scales.into_iter().enumerate() {
        if index != place || fault != Fault::NotAnnounced {
            machine.allow(address, 4, 1).expect("announced");
        }
    }
    request.start(&algorithm, [1.0, 0.0], addresses, compute).expect("starts");
    (calls::code(machine.synchronize()), machine.failure())
}

#[test]
fn scales_are_checked_like_all_memory() {
    for place in [0, 1] {
        for (fault, code, message) in [
            (Fault::Nothing, 0, ""),
            (Fault::Unwritten, codes::LAUNCH_FAILED, "reads unwritten bytes"),
            (Fault::NotAnnounced, codes::ILLEGAL_ADDRESS, "must not be read"),
            (Fault::WrittenByAnotherStream, codes::LAUNCH_FAILED, "not ordered with a copy"),
        ] {
            let (got, failure) = run_with(fault, place);
            assert_eq!(got, code, "{fault:?} {place}: {failure}");
            assert!(failure.contains(message), "{fault:?} {place}: {failure}");
        }
    }
}

#[test]
fn supported_products_have_algorithms() {
    let square = Request { extents: [32; 3], strides: [32; 3], ..ACCEPTED };
    let halves = Request { types: [E4M3, E5M2, BF16], extents: [24, 5, 32], ..ACCEPTED };
    let small = Request { extents: [4, 1, 16], strides: [16, 16, 4], ..ACCEPTED };
    for card in [ADA, "capability=9.0", "capability=10.0", "card=rtx5090"] {
        let _machine = Machine::of(card);
        for request in [ACCEPTED, square, halves, small, Request { alignment: 256, ..ACCEPTED }] {
            assert_eq!(request.algorithms().map(|all| all.is_empty()), Ok(false), "{card} {request:?}");
        }
    }
}

#[test]
fn what_the_library_does_not_support_is_refused() {
    let square = Request { extents: [32; 3], strides: [32; 3], ..ACCEPTED };
    let halves = Request { types: [E4M3, E4M3, BF16], extents: [24, 5, 32], ..ACCEPTED };
    let refused = [
        ("A and B not transposed", Request { transposed: [false, false], ..square }),
        ("B transposed", Request { transposed: [false, true], ..square }),
        ("both transposed", Request { transposed: [true, true], ..square }),
        ("both e5m2", Request { types: [E5M2, E5M2, F32], ..ACCEPTED }),
        ("e4m3 and bf16", Request { types: [E4M3, BF16, F32], ..ACCEPTED }),
        ("f16 and e5m2", Request { types: [F16, E5M2, F16], extents: [24, 5, 32], ..ACCEPTED }),
        ("a result in e4m3", Request { types: [E4M3, E4M3, E4M3], extents: [32, 5, 32], strides: [32; 3], ..ACCEPTED }),
        ("a result in e5m2", Request { types: [E4M3, E5M2, E5M2], extents: [32, 5, 32], strides: [32; 3], ..ACCEPTED }),
        ("factors in bf16 and a result in e4m3", Request { types: [BF16, BF16, E4M3], ..square }),
        ("rounding to TF32", Request { compute: 77, ..ACCEPTED }),
        ("24 terms", Request { extents: [20, 5, 24], ..ACCEPTED }),
        ("18 rows in single precision", Request { extents: [18, 5, 32], ..ACCEPTED }),
        ("20 rows in half precision", Request { extents: [20, 5, 32], ..halves }),
        ("columns of A every 40 bytes", Request { strides: [40, 32, 24], ..ACCEPTED }),
        ("columns of B every 40 bytes", Request { strides: [48, 40, 24], ..ACCEPTED }),
        ("columns of D every 88 bytes", Request { strides: [48, 32, 22], ..ACCEPTED }),
        ("columns of D every 56 bytes", Request { strides: [48, 32, 28], ..halves }),
    ];
    let machine = Machine::of(ADA);
    let (_, algorithm, addresses) = ones(&machine, [0; 2]);
    for (what, request) in refused {
        let start = request.start(&algorithm, [1.0, 0.0], addresses, 0);
        let calls = [request.algorithms().map(|_| ()), request.check(&algorithm), start];
        assert_eq!(calls, [Err(NOT_SUPPORTED); 3], "{what}");
    }
    drop(machine);
    for card in ["card=rtx2080", "card=a100", "card=rtx3060", "capability=8.7"] {
        let _machine = Machine::of(card);
        assert_eq!(ACCEPTED.algorithms(), Err(NOT_SUPPORTED), "{card}");
        assert_eq!(ACCEPTED.check(&algorithm), Err(NOT_SUPPORTED), "{card}");
    }
}

#[test]
fn scales_belong_to_8_bit_floats_and_to_factors() {
    let machine = Machine::of(ADA);
    let scale = put_numbers(&machine, F32, &[1.0]);
    let with = |types, which, scale| Request { types, attributes: [(which, scale), NONE, NONE, NONE], ..ACCEPTED };
    for (types, which) in [([BF16, BF16, BF16], SCALE_A), ([F32, F32, F32], SCALE_B)] {
        assert_eq!(with(types, which, scale).algorithms(), Err(INVALID_VALUE), "{types:?}");
        assert!(with(types, which, 0).algorithms().is_ok(), "{types:?}");
    }
    // Scales of C and D, the largest number of D, fast sums.
    for which in [19, 20, 21, 25] {
        assert_eq!(with(ACCEPTED.types, which, scale).describe().err(), Some(INVALID_VALUE), "{which}");
    }
}

#[test]
fn addresses_are_aligned() {
    let machine = Machine::of(ADA);
    let scale = put_numbers(&machine, F32, &[1.0, 1.0]);
    let (request, algorithm, addresses) = ones(&machine, [scale; 2]);
    let start = |request: &Request, addresses| request.start(&algorithm, [1.0, 0.0], addresses, 0);
    assert_eq!(start(&request, addresses), Ok(()));
    for place in 0..3 {
        let mut addresses = addresses;
        addresses[place] += 8;
        assert_eq!(start(&request, addresses), Err(INVALID_VALUE), "{place}");
    }
    for place in 0..2 {
        let mut request = request;
        request.attributes[place].1 += 2;
        assert_eq!(start(&request, addresses), Err(INVALID_VALUE), "{place}");
    }
    // No algorithm works with less.
    assert_eq!(Request { alignment: 8, ..request }.algorithms(), Ok(vec![]));
    assert!(
        !Request { types: [BF16, BF16, BF16], attributes: [NONE; 4], alignment: 8, ..request }
            .algorithms()
            .expect("supported")
            .is_empty()
    );
}
