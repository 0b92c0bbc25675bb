//! Products by a library: refused libraries, and kernels that use a correct one. In a separate process, since a process
//! chooses its library once.

use plimsoll_exec::cases::{Noise, fill_value};
use plimsoll_exec::reference::{RefCall, Value, run};
use plimsoll_exec::{Blas, BlasError, Call, Input, Output, blas_in_use, run_cpu_kernel, use_blas};
use plimsoll_graph::ops::{HeadLossGrad, Linear, LinearInputGrad, LinearWeightGrad, WeightLayout};
use plimsoll_graph::{Fill, Io, Op, Scalars, TensorType};
use std::path::Path;

/// Rows, channels and columns of products that are large enough for a library.
const B: usize = 130;
const C: usize = 190;
const O: usize = 300;

/// Shapes of operands, and their contents.
type Shapes<'a> = Vec<(&'a [usize], Fill)>;

/// Results by the reference kernel in double precision, and by the fast one.
fn results(op: &Op, shapes: &[(&[usize], Fill)], threads: usize) -> (Vec<Vec<f64>>, Vec<Vec<f32>>) {
    let mut noise = Noise::new(7);
    let types = shapes.iter().map(|&(shape, fill)| match fill {
        Fill::Target(_) => TensorType::i32(shape),
        _ => TensorType::f32(shape),
    });
    let types = types.collect::<Vec<_>>();
    let inputs = types.iter().zip(shapes).map(|(ty, &(_, fill))| fill_value::<f32>(ty, fill, &mut noise));
    let inputs = inputs.collect::<Vec<_>>();
    let outputs = op.infer(&types.iter().collect::<Vec<_>>()).expect("well-typed");
    let state = outputs.iter().map(|ty| fill_value::<f32>(ty, Fill::Uniform, &mut noise).floats().to_vec());
    let mut fast = state.collect::<Vec<_>>();
    let widen = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let mut exact = fast.iter().map(|values| widen(values)).collect::<Vec<_>>();
    let wide = inputs.iter().map(|value| match value {
        Value::Float(values) => Value::Float(widen(values)),
        Value::Int(values) => Value::Int(values.clone()),
    });
    let wide = wide.collect::<Vec<_>>();
    let io = || Io::new(&types, &outputs);
    let scalars = Scalars::default();
    run(op, &RefCall { inputs: wide.iter().collect(), io: io(), scalars: &scalars }, &mut exact);

    let target = plimsoll_graph::Target::Cpu { threads };
    let mut scratch = vec![0.0; op.working_bytes(&io(), &target).0 as usize / 4];
    let given = inputs.iter().map(|value| match value {
        Value::Float(values) => Input::F32(values),
        Value::Int(values) => Input::I32(values),
    });
    let call = Call {
        inputs: given.collect(),
        outputs: fast.iter_mut().map(|values| Output::F32(values)).collect(),
        scratch: &mut scratch,
        io: io(),
        scalars: &scalars,
        threads,
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
    pool.install(|| run_cpu_kernel(op, call));
    (exact, fast)
}

#[test]
fn kernels_with_a_library_equal_their_references_and_are_reproducible() {
    use_blas(Blas::open(plimsoll_fake_blas::right()).expect("a library that works"));
    let library = blas_in_use().expect("it was chosen");
    assert_eq!((library.name.as_str(), library.file.as_path()), ("OpenBLAS 0.0 stand-in", plimsoll_fake_blas::right()));
    let float = Fill::Uniform;
    let (layout, bias, accumulate) = (WeightLayout::OutIn, true, true);
    let head = HeadLossGrad {
        chunk: 128,
        smoothing: 0.1,
        cap: None,
        input: true,
        weight: true,
        adapter: None,
        accumulate_loss: false,
        accumulate,
    };
    let (x, y, weight): (&[usize], &[usize], &[usize]) = (&[1, B, C], &[1, B, O], &[O, C]);
    let cases: [(Op, Shapes); 4] = [
        (Linear { layout, bias }.into(), vec![(x, float), (weight, float), (&[O], float)]),
        (LinearInputGrad { layout }.into(), vec![(y, float), (weight, float)]),
        (LinearWeightGrad { layout, weight: true, bias, accumulate }.into(), vec![(x, float), (y, float)]),
        (head.into(), vec![(x, float), (weight, float), (&[1, B], Fill::Target(O as i32))]),
    ];
    for (op, shapes) in cases {
        for threads in [1, 2, 3] {
            let (exact, fast) = results(&op, &shapes, threads);
            for (exact, fast) in exact.iter().zip(&fast) {
                let scale = 1.0 + exact.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                for (exact, fast) in exact.iter().zip(fast) {
                    assert!((exact - f64::from(*fast)).abs() < 2e-5 * scale, "{op:?}: {fast}, not {exact}");
                }
            }
            assert!(results(&op, &shapes, threads).1 == fast, "{op:?}: other bits the second time");
        }
    }
}

#[test]
fn unusable_libraries_are_refused() {
    let refusal = |path: &Path| Blas::open(path).expect_err("it can't be used");
    assert!(matches!(refusal(plimsoll_fake_blas::wrong()), BlasError::WrongProduct { .. }));
    assert!(matches!(refusal(plimsoll_fake_blas::wide()), BlasError::WideIntegers { .. }));
    assert!(matches!(refusal(plimsoll_fake_blas::bare()), BlasError::NoProducts { .. }));
    assert!(matches!(refusal(Path::new("/missing/libopenblas.so")), BlasError::NotLoaded { .. }));
    let no_library = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    assert!(matches!(refusal(&no_library), BlasError::NotLoaded { .. }));
}
