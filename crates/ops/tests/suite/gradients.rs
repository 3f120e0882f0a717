//! Rows of gradients against central differences of the references of their ops, in f64.
//!
//! The references are what devices are compared with (`parity`), so a gradient that is right here
//! is right there within its bound.

use fercuda_jit::reference::ExactValue;
use fercuda_ops::{OpDescriptor, OpRow, oracle, registry};
use fercuda_tensor::{Dtype, Layout};

use crate::native_window;

/// Elements in order, as f64, or whole numbers of i64.
#[derive(Clone)]
struct Values {
    dtype: Dtype,
    shape: Vec<u64>,
    elements: Vec<f64>,
}

impl Values {
    fn random(random: &mut fastrand::Rng, dtype: Dtype, shape: &[u64]) -> Self {
        let count = shape.iter().product::<u64>();
        // Away from 0 and multiples of 1/256, where some functions have no slope; exact in f32.
        let element = |random: &mut fastrand::Rng| {
            let size = f64::from(random.u32(64..1024) | 1) / 512.0;
            if random.bool() { size } else { -size }
        };
        Self {
            dtype,
            shape: shape.to_vec(),
            elements: (0..count).map(|_| element(random)).collect(),
        }
    }

    fn whole(elements: &[u64]) -> Self {
        Self {
            dtype: Dtype::I64,
            shape: vec![elements.len() as u64],
            elements: elements.iter().map(|it| *it as f64).collect(),
        }
    }

    fn moved(&self, at: usize, by: f64) -> Self {
        let mut moved = self.clone();
        moved.elements[at] += by;
        moved
    }
}

/// All elements of an op's first result, by its reference.
fn value(op: &OpDescriptor, operands: &[Values]) -> Vec<f64> {
    result(op, operands, 0)
}

/// All elements of one of an op's results, by its reference.
fn result(op: &OpDescriptor, operands: &[Values], number: usize) -> Vec<f64> {
    let layouts = operands.iter();
    let layouts: Vec<Layout> = layouts
        .map(|it| Layout::contiguous(it.dtype, &it.shape).unwrap())
        .collect();
    let encoded = |it: &Values| {
        let bits = it.elements.iter();
        bits.map(|value| match it.dtype {
            Dtype::I64 => (*value as i64).cast_unsigned(),
            dtype => dtype.encode(*value),
        })
        .collect()
    };
    let bits: Vec<Vec<u64>> = operands.iter().map(encoded).collect();
    let results = oracle::evaluate(op, &layouts, &bits);
    let results = results.unwrap_or_else(|error| panic!("{error}"));
    let values = results[number].iter().map(|near| match near.value {
        ExactValue::Float(value) => value,
        ExactValue::Int(value) => value as f64,
    });
    values.collect()
}

/// A gradient, and the op that it is of.
struct Gradient {
    backward: OpDescriptor,
    forward: OpDescriptor,
    /// Operands of the op, and which of them moves.
    operands: Vec<Values>,
    moving: usize,
    /// Which of the gradient's results is the slope.
    result: usize,
    /// Operands of the gradient behind that of the result; of the result itself if there are none.
    others: Option<Vec<Values>>,
}

impl Gradient {
    fn check(&self, random: &mut fastrand::Rng) {
        let name = self.backward.name();
        let own = value(&self.forward, &self.operands);
        let x = &self.operands[self.moving];
        let mut g = Values::random(random, x.dtype, &[own.len() as u64]);
        g.shape = self.result_shape();
        let others = self.others.clone().unwrap_or_else(|| {
            vec![Values {
                dtype: x.dtype,
                shape: g.shape.clone(),
                elements: own.clone(),
            }]
        });
        let all: Vec<Values> = [g.clone()].into_iter().chain(others).collect();
        let gradient = result(&self.backward, &all, self.result);
        assert_eq!(gradient.len(), x.elements.len(), "{name}");
        // Exact in f32, so that nothing is lost in the difference of operands.
        let step = f64::exp2(-10.0);
        let weighted = |by: f64, at: usize| -> f64 {
            let mut operands = self.operands.clone();
            operands[self.moving] = x.moved(at, by);
            let result = value(&self.forward, &operands);
            // The largest of no places stays infinite.
            let terms = result
                .iter()
                .zip(&g.elements)
                .filter(|(y, _)| y.is_finite());
            terms.map(|(y, g)| y * g).sum()
        };
        let size = gradient
            .iter()
            .fold(1.0, |most: f64, it| most.max(it.abs()));
        // Some of the elements: each takes two evaluations of the whole.
        let mut places: Vec<usize> = (0..gradient.len()).collect();
        random.shuffle(&mut places);
        for at in places.into_iter().take(24) {
            let own = gradient[at];
            let (before, after) = (weighted(-step, at), weighted(step, at));
            let slope = (after - before) / (2.0 * step);
            // The third derivatives are below 100, and the references may be rounded to f32 once.
            let error = 100.0 * step * step + 64.0 * f64::exp2(-24.0) / step;
            let here = weighted(0.0, at);
            let sides = [(here - before) / step, (after - here) / step];
            // At a kink, as where an element enters the support, any slope between its sides is
            // one.
            let is_kink = (sides[0] - sides[1]).abs() > 0.05 * size;
            let is_between = |own: f64| {
                let own = [own - error * size, own + error * size];
                own[1] >= sides[0].min(sides[1]) && own[0] <= sides[0].max(sides[1])
            };
            assert!(
                (slope - own).abs() <= error * size || (is_kink && is_between(own)),
                "{name}[{at}] is {own}, the differences say {slope}\n{:?}",
                self.forward
            );
        }
    }

    fn result_shape(&self) -> Vec<u64> {
        let layouts = self.operands.iter();
        let layouts: Vec<Layout> = layouts
            .map(|it| Layout::contiguous(it.dtype, &it.shape).unwrap())
            .collect();
        let results = self.forward.result_layouts(&layouts).unwrap();
        results[0].shape().to_vec()
    }
}

fn op(name: &str) -> OpDescriptor {
    OpDescriptor::new(name).unwrap()
}

/// A class for each row, and sometimes one that is ignored.
fn classes(random: &mut fastrand::Rng, rows: u64, classes: u64) -> Values {
    let all: Vec<u64> = (0..rows).map(|_| random.u64(..classes)).collect();
    let mut all = Values::whole(&all);
    if random.bool() {
        all.elements[0] = -100.0;
    }
    all
}

/// A norm's gradient by its operand, gamma or beta.
fn norm(random: &mut fastrand::Rng, [forward, backward]: [OpDescriptor; 2]) -> Gradient {
    let has_groups = backward.row().numbers.len() > 1;
    let shape = [2, 4, random.u64(2..5)];
    let channels = match backward.row().has("axis") {
        true => shape[2],
        false => shape[1],
    };
    let parts = |op: OpDescriptor| {
        let op = op.number("eps", 0.25).unwrap();
        match has_groups {
            true => op.number("groups", 2.0).unwrap(),
            false => op,
        }
    };
    let mut operands = vec![Values::random(random, Dtype::F64, &shape)];
    let mut vector = |_| Values::random(random, Dtype::F64, &[channels]);
    let vectors = forward.row().operands.len() - 1;
    operands.extend((0..vectors).map(&mut vector));
    if forward.name() == "batch_norm_inference" {
        operands[2]
            .elements
            .iter_mut()
            .for_each(|it| *it = it.abs());
    }
    let results = backward.row().results.len();
    let result = random.usize(..results);
    // Weights are the last operands, as many as there are results behind the first one.
    let moving = match result {
        0 => 0,
        number => operands.len() - results + number,
    };
    let mut others = operands.clone();
    if forward.row().operands.contains(&"beta") {
        others.pop();
    }
    Gradient {
        backward: parts(backward),
        forward: parts(forward),
        operands,
        moving,
        result,
        others: Some(others),
    }
}

/// The gradient of a pool, of the places that it gives, or of an interpolation.
fn window(random: &mut fastrand::Rng, [forward, backward]: [OpDescriptor; 2]) -> Gradient {
    let (backward, [mut own, places]) = native_window::parameters(random, backward);
    own[0] = 2;
    let mut forward = forward;
    for (list, _) in forward.row().lists {
        let values: Vec<i64> = match *list {
            "size" => places[2..].iter().map(|it| *it as i64).collect(),
            list => backward.list_of(list).to_vec(),
        };
        forward = forward.list(list, &values).unwrap();
    }
    for (choice, _) in forward.row().choices {
        forward = forward.choice(choice, backward.choice_of(choice)).unwrap();
    }
    let mut x = Values::random(random, Dtype::F64, &own);
    // Different elements, so that a small step changes no largest one.
    let mut order: Vec<usize> = (0..x.elements.len()).collect();
    random.shuffle(&mut order);
    let ranked = order.iter().map(|rank| *rank as f64 / 64.0);
    x.elements = ranked.collect();
    let operands = vec![x];
    let index = (backward.row().operands.len() > 1).then(|| Values {
        dtype: Dtype::I64,
        shape: [&own[..2], &places[2..]].concat(),
        elements: result(&forward, &operands, 1),
    });
    Gradient {
        backward,
        forward,
        operands,
        moving: 0,
        result: 0,
        others: Some(index.into_iter().collect()),
    }
}

/// The gradient of a grid's places, which are away from elements and from reflections.
fn grid(random: &mut fastrand::Rng, both: [OpDescriptor; 2]) -> Gradient {
    let row = both[0].row();
    let choices = row.choices.iter();
    let choices: Vec<(&str, &str)> = choices
        .map(|(choice, values)| (*choice, values[random.usize(..values.len())]))
        .collect();
    let [forward, backward] = both.map(|op| {
        let choices = choices.iter();
        choices.fold(op, |op, (choice, value)| op.choice(choice, value).unwrap())
    });
    let extents = [random.u64(2..5), random.u64(2..5)];
    let x = Values::random(random, Dtype::F64, &[2, 2, extents[0], extents[1]]);
    let mut grid = Values::random(random, Dtype::F64, &[2, 3, 2, 2]);
    for (at, element) in grid.elements.iter_mut().enumerate() {
        let extent = extents[1 - at % 2] as f64;
        let beyond = [0.25, 0.3125, 0.6875, 0.75][random.usize(..4)];
        let place = f64::from(random.i32(-3..8)) + beyond;
        *element = match backward.choice_of("align") {
            "corners" => 2.0 * place / (extent - 1.0) - 1.0,
            _ => (2.0 * place + 1.0) / extent - 1.0,
        };
    }
    let result = random.usize(..2);
    let operands = vec![x, grid];
    Gradient {
        backward,
        forward,
        operands: operands.clone(),
        moving: result,
        result,
        others: Some(operands),
    }
}

/// The gradient of a linear layer's loss, by parts of its classes.
fn linear_loss(random: &mut fastrand::Rng, both: [OpDescriptor; 2]) -> Gradient {
    let reduce = ["none", "mean", "sum"][random.usize(..3)];
    let [forward, backward] = both.map(|op| {
        let op = op.choice("reduce", reduce).unwrap();
        let op = op.number("smoothing", 0.125).unwrap();
        op.number("z_weight", 0.25).unwrap()
    });
    let [rows, inputs, count] = [3, random.u64(1..4), random.u64(2..6)];
    let index = classes(random, rows, count);
    let [x, weight, bias] = [&[rows, inputs][..], &[count, inputs], &[count]]
        .map(|shape| Values::random(random, Dtype::F64, shape));
    let operands = vec![x, weight, index, bias];
    let mut logarithms = Values::random(random, Dtype::F64, &[rows]);
    logarithms.elements = result(&forward, &operands, 1);
    let number = random.usize(..3);
    Gradient {
        backward,
        forward,
        operands: operands.clone(),
        moving: [0, 1, 3][number],
        result: number,
        others: Some([vec![logarithms], operands].concat()),
    }
}

fn gradient(random: &mut fastrand::Rng, name: &'static str) -> Gradient {
    let forward = name.strip_suffix("_backward").unwrap();
    let row = registry::find(name).unwrap();
    let dtype = match row.types.has(Dtype::F64) {
        true => Dtype::F64,
        false => Dtype::F32,
    };
    let [rows, columns] = [random.u64(2..4), random.u64(2..6)];
    let x = Values::random(random, dtype, &[rows, columns]);
    match forward {
        "cross_entropy" | "nll_loss" => {
            let index = classes(random, rows, columns);
            let reduce = ["none", "mean", "sum"][random.usize(..3)];
            let mut both = [op(forward), op(name)];
            for op in &mut both {
                *op = op.clone().choice("reduce", reduce).unwrap();
                if forward == "cross_entropy" {
                    *op = op.clone().number("smoothing", 0.125).unwrap();
                    *op = op.clone().number("z_weight", 0.25).unwrap();
                }
            }
            let [forward, backward] = both;
            let mut operands = vec![x, index];
            if random.bool() {
                let mut weights = Values::random(random, dtype, &[columns]);
                weights.elements.iter_mut().for_each(|it| *it = it.abs());
                operands.push(weights);
            }
            Gradient {
                backward,
                forward,
                operands: operands.clone(),
                moving: 0,
                result: 0,
                others: Some(operands),
            }
        }
        "layer_norm"
        | "rms_norm"
        | "group_norm"
        | "instance_norm"
        | "batch_norm"
        | "batch_norm_inference" => norm(random, [op(forward), op(name)]),
        "max_pool" | "adaptive_max_pool" | "avg_pool" | "adaptive_avg_pool" | "interpolate" => {
            window(random, [op(forward), op(name)])
        }
        "linear_cross_entropy" => linear_loss(random, [op(forward), op(name)]),
        "grid_sample" => grid(random, [op(forward), op(name)]),
        "gather" | "index_select" => {
            let part = random.u64(1..7);
            let index: Vec<u64> = (0..part * rows).map(|_| random.u64(..columns)).collect();
            let mut index = Values::whole(&index);
            let mut backward = op(name);
            if forward == "gather" {
                index.shape = vec![rows, part];
                backward = backward.shape(&[rows, columns]).unwrap();
            } else {
                backward = backward.number("rows", columns as f64).unwrap();
            }
            Gradient {
                backward,
                forward: op(forward),
                operands: vec![x, index.clone()],
                moving: 0,
                result: 0,
                others: Some(vec![index]),
            }
        }
        "embedding" | "embedding_bag" => {
            let count = random.u64(1..7);
            let index: Vec<u64> = (0..count).map(|_| random.u64(..rows)).collect();
            let mut others = vec![Values::whole(&index)];
            let mut both = [op(forward), op(name).number("rows", rows as f64).unwrap()];
            if forward == "embedding_bag" {
                others.push(Values::whole(&[0, random.u64(..=count), count]));
                let reduce = ["sum", "mean"][random.usize(..2)];
                both = both.map(|op| op.choice("reduce", reduce).unwrap());
            }
            let [forward, backward] = both;
            Gradient {
                backward,
                forward,
                operands: [x].into_iter().chain(others.clone()).collect(),
                moving: 0,
                result: 0,
                others: Some(others),
            }
        }
        "conv_weight" => {
            let [stride, padding] = [random.i64(1..3), random.i64(0..2)];
            let kernel = random.u64(1..4);
            let parts = |op: OpDescriptor| {
                let op = op.list("stride", &[stride]).unwrap();
                op.list("padding", &[padding]).unwrap()
            };
            // Whole strides, so that the kernel's extent follows from the result's.
            let places = random.u64(2..4);
            let extent = (places - 1) * stride.unsigned_abs() + kernel;
            let extent = extent.saturating_sub(2 * padding.unsigned_abs()).max(1);
            let x = Values::random(random, dtype, &[2, 3, extent]);
            let weight = Values::random(random, dtype, &[4, 3, kernel]);
            Gradient {
                backward: parts(op(name)).list("kernel", &[kernel as i64]).unwrap(),
                forward: parts(op("conv")),
                operands: vec![x.clone(), weight],
                moving: 1,
                result: 0,
                others: Some(vec![x]),
            }
        }
        _ => by_elements(random, row, x),
    }
}

/// The gradient of an op of elements, or along the last axis.
fn by_elements(random: &mut fastrand::Rng, row: &'static OpRow, x: Values) -> Gradient {
    let name = row.name.trim_end_matches("_backward");
    let (name, moving) = match (name.strip_suffix("_gate"), name.strip_suffix("_slope")) {
        (Some(unit), _) | (_, Some(unit)) => (unit, 1),
        _ => (name, 0),
    };
    let mut forward = op(name);
    if forward.row().has("axes") {
        // Each element is a mean of its own.
        forward = forward.axes(&[]).unwrap();
    }
    let mut operand = |operand: &&str| {
        let mut own = Values::random(random, x.dtype, &x.shape);
        for element in &mut own.elements {
            match (name, *operand) {
                ("hinge_loss" | "squared_hinge_loss", "target") => *element = element.signum(),
                ("bce_loss", "x") => *element = 0.25 + element.abs() / 4.0,
                // Further from what it is subtracted from than a step.
                (_, "target") => *element = element.abs() + f64::exp2(-10.0),
                (_, "variance") => *element = element.abs() + 0.5,
                _ => {}
            }
        }
        own
    };
    let names = forward.row().operands;
    let operands: Vec<Values> = names.iter().map(&mut operand).collect();
    let by_result = row.operands.contains(&"y");
    let of_name = |name: &&str| {
        let at = names.iter().position(|own| own == name).unwrap();
        operands[at].clone()
    };
    let others = (!by_result).then(|| row.operands[1..].iter().map(of_name).collect());
    Gradient {
        backward: op(row.name),
        forward,
        operands,
        moving,
        result: 0,
        others,
    }
}

#[test]
fn gradients_are_the_slopes_of_their_ops() {
    let mut random = fercuda_trials::rng();
    let mut checked = 0;
    for row in registry::rows().filter(|row| row.name.ends_with("_backward")) {
        for _ in 0..4 {
            gradient(&mut random, row.name).check(&mut random);
        }
        checked += 1;
    }
    assert!(checked >= 15, "{checked} gradients");
}
