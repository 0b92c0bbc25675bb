//! Matrix products.
//! Source: `native/LinearAlgebra.cpp` (`matmul`), `native/Linear.cpp`, `mm_mat1_backward` of `FunctionsManual.cpp`.

use super::autocast_to;
use crate::runtime::{Op, Saved, Tensor};

/// `bias + a @ b` of matrices: (N, K), (K, M) -> (N, M).
pub(crate) fn addmm(bias: &Tensor, a: &Tensor, b: &Tensor) -> Tensor {
    let (bias, a, b) = (autocast_to(bias), autocast_to(a), autocast_to(b));
    let op = Op::new("addmm", &[&bias, &a, &b]);
    let operands = Operands::save(&op, 1, &a, &b);
    let read = [bias.materialized(), a.materialized(), b.materialized()];
    let out = Tensor::new(a.rt(), &[a.shape()[0], b.shape()[1]], a.dtype(), "addmm");
    drop(read);
    a.rt().multiply();
    op.finish_one(out, move |_, gradient, needs| {
        let operands = operands.unpack();
        let (of_a, of_b) = (operands.of_first(gradient), operands.of_second(gradient));
        vec![needs[0].then(|| gradient.clone()), of_a, of_b]
    })
}

/// `input + alpha * a @ b` of batches of matrices, without autocast: (B, N, M), (B, N, K), (B, K, M) -> (B, N, M).
pub(crate) fn baddbmm(input: &Tensor, a: &Tensor, b: &Tensor) -> Tensor {
    let op = Op::new("baddbmm", &[input, a, b]);
    let operands = Operands::save(&op, 1, a, b);
    let read = [input.materialized(), a.materialized(), b.materialized()];
    let out = Tensor::new(input.rt(), input.shape(), input.dtype(), "baddbmm");
    drop(read);
    a.rt().multiply();
    op.finish_one(out, move |_, gradient, needs| {
        let operands = operands.unpack();
        let scaled = |product: Tensor| product.empty_like(product.dtype(), "mul");
        let of_a = operands.of_first(gradient).map(scaled);
        let of_b = operands.of_second(gradient).map(scaled);
        vec![needs[0].then(|| gradient.clone()), of_a, of_b]
    })
}

impl Tensor {
    /// Product of matrices: (N, K), (K, M) -> (N, M).
    pub fn mm(&self, other: &Self) -> Self {
        let (a, b) = (autocast_to(self), autocast_to(other));
        let op = Op::new("mm", &[&a, &b]);
        let operands = Operands::save(&op, 0, &a, &b);
        let read = [a.materialized(), b.materialized()];
        let out = Self::new(a.rt(), &[a.shape()[0], b.shape()[1]], a.dtype(), "mm");
        drop(read);
        a.rt().multiply();
        op.finish_one(out, move |_, gradient, _| {
            let operands = operands.unpack();
            let of_b = operands.of_second(gradient);
            vec![operands.of_first(gradient), of_b]
        })
    }

    /// Batched product of matrices: (B, N, K), (B, K, M) -> (B, N, M).
    pub fn bmm(&self, other: &Self) -> Self {
        let op = Op::new("bmm", &[self, other]);
        let operands = Operands::save(&op, 0, self, other);
        let shape = [self.shape()[0], self.shape()[1], other.shape()[2]];
        let read = [self.materialized(), other.materialized()];
        let out = Self::new(self.rt(), &shape, self.dtype(), "bmm");
        drop(read);
        self.rt().multiply();
        op.finish_one(out, move |_, gradient, _| {
            let operands = operands.unpack();
            let of_b = operands.of_second(gradient);
            vec![operands.of_first(gradient), of_b]
        })
    }

    /// Batched product with any leading dimensions, which are flattened to one, by a copy if there is no view.
    pub fn matmul(&self, other: &Self) -> Self {
        let (a, b) = (autocast_to(self), autocast_to(other));
        let batch = super::broadcast(&a.shape()[..a.dim() - 2], &b.shape()[..b.dim() - 2]);
        let flat = |tensor: &Self| {
            let ends = tensor.shape()[tensor.dim() - 2..].to_vec();
            let full = batch.iter().copied().chain(ends.iter().copied()).collect::<Vec<_>>();
            let count = batch.iter().product();
            tensor.expand(&full).reshape(&[count, ends[0], ends[1]])
        };
        let (rows, columns) = (a.size(-2), b.size(-1));
        let out = flat(&a).bmm(&flat(&b));
        out.view(&batch.iter().copied().chain([rows, columns]).collect::<Vec<_>>())
    }

    /// A linear layer: (…, K) with a weight (M, K) and a bias (M,) -> (…, M).
    pub fn linear(&self, weight: &Self, bias: Option<&Self>) -> Self {
        let (this, weight) = (autocast_to(self), autocast_to(weight));
        let bias = bias.map(autocast_to);
        let rows = this.elements() / this.size(-1);
        let flat = || this.reshape(&[rows, this.size(-1)]);
        // The order of the views is that of their gradients.
        let out = match &bias {
            Some(bias) => {
                let flat = flat();
                addmm(bias, &flat, &weight.transpose(0, 1))
            }
            None => {
                let turned = weight.transpose(0, 1);
                flat().mm(&turned)
            }
        };
        let mut shape = this.shape().to_vec();
        let last = shape.len() - 1;
        shape[last] = weight.shape()[0];
        out.view(&shape)
    }
}

/// The memory layout of an operand, which its gradient has too.
#[derive(Clone, Copy)]
struct Layout {
    by_column: bool,
}

impl Layout {
    fn of(tensor: &Tensor) -> Self {
        let (shape, strides) = (tensor.shape(), tensor.strides());
        Self { by_column: tensor.dim() == 2 && strides[0] == 1 && strides[1] == shape[0] && shape[0] != 1 }
    }

    /// A product that the tape does not record.
    fn product(self, a: &Tensor, b: &Tensor) -> Tensor {
        let mut shape = a.shape().to_vec();
        let last = shape.len() - 1;
        shape[last] = b.size(-1);
        if self.by_column {
            shape.swap(last - 1, last);
        }
        let _read = [a.materialized(), b.materialized()];
        let out = Tensor::new(a.rt(), &shape, a.dtype(), "mm_backward");
        a.rt().multiply();
        if self.by_column { out.transpose(-2, -1) } else { out }
    }
}

/// The operands that a product's gradients need.
struct Operands {
    saved: [Option<Saved>; 2],
    layouts: [Layout; 2],
}

impl Operands {
    /// `first` is the index of `a` among the op's inputs.
    fn save(op: &Op, first: usize, a: &Tensor, b: &Tensor) -> Self {
        let saved = [op.save_if(a, op.needs(first + 1)), op.save_if(b, op.needs(first))];
        Self { saved, layouts: [Layout::of(a), Layout::of(b)] }
    }

    fn unpack(self) -> Unpacked {
        Unpacked { tensors: self.saved.map(|saved| saved.map(Saved::unpack)), layouts: self.layouts }
    }
}

/// The operands in the backward pass; they live until the formula returns.
struct Unpacked {
    tensors: [Option<Tensor>; 2],
    layouts: [Layout; 2],
}

impl Unpacked {
    fn of_first(&self, gradient: &Tensor) -> Option<Tensor> {
        self.tensors[1].as_ref().map(|b| self.layouts[0].product(gradient, &b.transpose(-2, -1)))
    }

    fn of_second(&self, gradient: &Tensor) -> Option<Tensor> {
        self.tensors[0].as_ref().map(|a| self.layouts[1].product(&a.transpose(-2, -1), gradient))
    }
}
