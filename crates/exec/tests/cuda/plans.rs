//! Small plans and their expected results.

use plimsoll_exec::{CpuDevice, Device, DeviceError, run_program};
use plimsoll_graph::ops::{Add, AwaitTransfer, Transfer};
use plimsoll_graph::{
    Graph, MemoryId, Node, Op, Pass, Ports, Program, ProgramKind, Role, Scalars, Storage, Targets, TensorId, TensorType,
};
use plimsoll_plan::{Plan, lay_out, validate};

/// Odd, so that the last vector is partial.
const ELEMENTS: usize = 203;

/// A plan of sums on device and host, with copies in both directions, each of which is awaited:
///
/// ```text
///   device     sum = a + b | twice = a + a |              await | over = b + b | result = twice + back + over
///   to host                | sum ─► far                                        |
///   host                                   | home += far                       |
///   to device                                            | home ─► back        |
/// ```
pub struct Sums {
    pub plan: Plan,
    inputs: [TensorId; 2],
    home: TensorId,
    result: TensorId,
}

impl Sums {
    /// For a machine's card, or for the processor.
    pub fn on(targets: &Targets) -> Self {
        let mut graph = Graph::default();
        let ty = TensorType::f32(&[ELEMENTS]);
        let mut tensor = |name: &str, storage, memory| {
            let id = graph.tensor(name, ty.clone(), Role::Activation, storage);
            graph[id].memory = memory;
            id
        };
        let [a, b, result] = ["a", "b", "result"].map(|name| tensor(name, Storage::Persistent, MemoryId::DEVICE));
        let home = tensor("home", Storage::Persistent, MemoryId::HOST);
        let names = ["sum", "twice", "over", "part", "back"];
        let [sum, twice, over, part, back] = names.map(|name| tensor(name, Storage::Transient, MemoryId::DEVICE));
        let far = tensor("far", Storage::Transient, MemoryId::HOST);
        let node = |op: Op, inputs: &[TensorId], outputs: &[TensorId]| {
            let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
            Node { op, inputs: inputs.into(), outputs: outputs.into(), block: None, pass: Pass::Forward }
        };
        let nodes = vec![
            node(Add.into(), &[a, b], &[sum]),
            node(Transfer.into(), &[sum], &[far]),
            node(Add.into(), &[a, a], &[twice]),
            node(Add.into(), &[home, far], &[home]),
            node(Transfer.into(), &[home], &[back]),
            node(AwaitTransfer.into(), &[sum], &[]),
            node(Add.into(), &[b, b], &[over]),
            node(Add.into(), &[twice, over], &[part]),
            node(Add.into(), &[part, back], &[result]),
        ];
        graph.programs.push(Program { name: ProgramKind::Numbered(0).into(), nodes, ports: Ports::default() });
        let plan = lay_out(&graph, targets);
        assert_eq!(validate(&plan), Ok(()));
        Self { plan, inputs: [a, b], home, result }
    }

    /// This plan, changed.
    pub fn of(plan: Plan) -> Self {
        Self { plan, ..Self::on_card() }
    }

    /// For a card like the stand-in's.
    pub fn on_card() -> Self {
        Self::on(&Targets::cuda((8, 6), 1))
    }

    /// Loads the plan and runs it `times` times. Returns the result, and the tensor that the host keeps.
    pub fn run(&self, device: &mut dyn Device, times: usize) -> Result<[Vec<f32>; 2], DeviceError> {
        device.load(&self.plan)?;
        for (number, &input) in self.inputs.iter().enumerate() {
            let values = (0..ELEMENTS).map(|i| (i * (number + 1)) as f32).collect::<Vec<_>>();
            device.write(&self.plan, input, bytemuck::cast_slice(&values))?;
        }
        for _ in 0..times {
            device.run_program(&self.plan, 0, &Scalars::default())?;
        }
        device.synchronize()?;
        let mut read = |tensor| {
            let mut values = vec![0.0f32; ELEMENTS];
            device.read(&self.plan, tensor, bytemuck::cast_slice_mut(&mut values))?;
            Ok::<_, DeviceError>(values)
        };
        Ok([read(self.result)?, read(self.home)?])
    }

    /// The expected values.
    pub fn expected(times: usize) -> [Vec<f32>; 2] {
        let value = |i: usize, f: &dyn Fn(f32, f32) -> f32| f(i as f32, (2 * i) as f32);
        let kept = |i| value(i, &|a, b| times as f32 * (a + b));
        let result = |i| value(i, &|a, b| 2.0 * a + 2.0 * b) + kept(i);
        [(0..ELEMENTS).map(result).collect(), (0..ELEMENTS).map(kept).collect()]
    }
}

#[test]
fn the_processor_computes_the_expected_sums() {
    let sums = Sums::on(&Targets::cuda((8, 6), 1));
    let mut device = CpuDevice::new();
    assert_eq!(sums.run(&mut device, 3), Ok(Sums::expected(3)));
    run_program(&mut device, &sums.plan, ProgramKind::Numbered(0), &Scalars::default()).expect("once more");
}
