//! Rows of a tensor chosen by indices, and the indices: `topk`, `sort`, indexing, `max`.
//! Source: `index_backward` and `value_selecting_reduction_backward` of `FunctionsManual.cpp`, `native/cuda/Indexing.cu`.

use crate::runtime::{DType, Op, Saved, Tensor};

/// Values and indices along the last dimension, of which `size` remain. The gradient is zero elsewhere.
fn selected(x: &Tensor, size: u64, name: &'static str) -> [Tensor; 2] {
    let op = Op::new(name, &[x]);
    let mut shape = x.shape().to_vec();
    let last = shape.len() - 1;
    shape[last] = size;
    let values = Tensor::new(x.rt(), &shape, x.dtype(), name);
    let indices = Tensor::new(x.rt(), &shape, DType::I64, name);
    let saved = op.save(&indices);
    let full = x.shape().to_vec();
    let values = op.finish_one(values, move |rt, gradient, _| {
        let _indices = saved.map(Saved::unpack);
        vec![Some(Tensor::new(rt, &full, gradient.dtype(), "new_zeros"))]
    });
    [values, indices]
}

/// The `count` largest values of the last dimension, and their indices: (…, E) -> two of (…, K).
pub(crate) fn topk(x: &Tensor, count: u64) -> [Tensor; 2] {
    selected(x, count, "topk")
}

/// The largest value of the last dimension, which remains with size 1, and its index.
pub(crate) fn max_last(x: &Tensor) -> [Tensor; 2] {
    selected(x, 1, "max")
}

/// Sorted indices (S,), and the permutation that sorts them.
pub(crate) fn sort(indices: &Tensor) -> [Tensor; 2] {
    [(); 2].map(|()| indices.empty_like(DType::I64, "sort"))
}

/// Rows of a tensor: x (N, …), indices (S,) -> (S, …). Saves the indices. The gradient sorts them, and adds rows to
/// zeros.
pub(crate) fn index(x: &Tensor, indices: &Tensor) -> Tensor {
    let op = Op::new("index", &[x]);
    let saved = op.save(indices);
    let full = x.shape().to_vec();
    let shape = [&[indices.elements()], &full[1..]].concat();
    let out = Tensor::new(x.rt(), &shape, x.dtype(), "index");
    op.finish_one(out, move |rt, gradient, _| {
        let indices = saved.map(Saved::unpack).expect("indexing saves its indices");
        let zeros = Tensor::new(rt, &full, gradient.dtype(), "new_zeros");
        // `index_put_with_sort_kernel`: the places in the result, and both sorted by place.
        let bytes = indices.elements() * DType::I64.bytes();
        let _sorted = [(); 3].map(|()| rt.scratch("index_put", bytes));
        vec![Some(zeros)]
    })
}

/// Elements of a matrix (N, M) in these rows and columns, (S,) each -> (S,).
pub(crate) fn index_pairs(x: &Tensor, rows: &Tensor, columns: &Tensor) -> Tensor {
    let op = Op::new("index", &[x]);
    let saved = [rows, columns].map(|indices| op.save(indices));
    let full = x.shape().to_vec();
    let out = Tensor::new(x.rt(), rows.shape(), x.dtype(), "index");
    op.finish_one(out, move |rt, gradient, _| {
        let _indices = saved.map(|saved| saved.map(Saved::unpack));
        vec![Some(Tensor::new(rt, &full, gradient.dtype(), "new_zeros"))]
    })
}

impl Tensor {
    /// The sum over a dimension, which is removed, or remains with size 1.
    pub fn sum_over(&self, dim: isize, keeps: bool) -> Self {
        self.sum_in(dim, keeps, self.dtype())
    }

    /// The same in another type.
    pub fn sum_in(&self, dim: isize, keeps: bool, dtype: DType) -> Self {
        let axis = self.axis(dim);
        let op = Op::new("sum", &[self]);
        let full = self.shape().to_vec();
        let mut kept = full.clone();
        kept[axis] = 1;
        let mut shape = kept.clone();
        if !keeps {
            shape.remove(axis);
        }
        let out = Self::new(self.rt(), &shape, dtype, "sum");
        op.finish_one(out, move |_, gradient, _| vec![Some(gradient.reshape_values(&kept).expand(&full))])
    }

    /// `self /= divisor`, in place. Saves a copy of its values if the divisor needs a gradient.
    pub fn div_in_place(self, divisor: &Self) -> Self {
        let op = Op::new("div", &[&self, divisor]);
        let before = op.needs(1).then(|| self.empty_like(self.dtype(), "clone"));
        let saved =
            [before.as_ref().and_then(|before| op.save(before)), op.save_if(divisor, op.needs(0) || op.needs(1))];
        drop(before);
        op.finish_one(self.detach(), |_, gradient, needs| {
            let [before, _divisor] = saved.map(|saved| saved.map(Saved::unpack));
            let like = |op| gradient.empty_like(gradient.dtype(), op);
            let of_divisor = before.as_ref().map(|_| {
                let _quotients = [like("div"), like("div")];
                let _negated = like("neg");
                like("mul")
            });
            vec![needs[0].then(|| like("div")), of_divisor]
        })
    }

    /// `self += other` of the same shape, in place.
    pub fn add_in_place(self, other: &Self) -> Self {
        let op = Op::new("add", &[&self, other]);
        op.finish_one(self.detach(), |_, gradient, needs| {
            needs.iter().map(|needed| needed.then(|| gradient.clone())).collect()
        })
    }
}
