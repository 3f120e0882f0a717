//! A small network over candle: products, softmax, convolution, reductions, sorting, casts and
//! training by its gradients, printed as lines `name: result`, which have to be the same with and
//! without `fercuda run`.

use candle_core::{D, DType, Device, Result, Tensor, Var};

/// Numbers that every device makes alike.
fn numbers(device: &Device, shape: (usize, usize), seed: u32) -> Result<Tensor> {
    let mut state = seed;
    let values: Vec<f32> = (0..shape.0 * shape.1)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as f32 / 65_536.0 - 0.5
        })
        .collect();
    Tensor::from_vec(values, shape, device)
}

fn scalar(tensor: &Tensor) -> Result<String> {
    let value = tensor.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
    Ok(format!("{value:.4e}"))
}

fn product(device: &Device) -> Result<String> {
    let (a, b) = (
        numbers(device, (300, 200), 1)?,
        numbers(device, (200, 100), 2)?,
    );
    scalar(&a.matmul(&b)?.abs()?)
}

fn halves(device: &Device) -> Result<String> {
    let (a, b) = (
        numbers(device, (64, 128), 3)?,
        numbers(device, (128, 64), 4)?,
    );
    let product = a.to_dtype(DType::F16)?.matmul(&b.to_dtype(DType::F16)?)?;
    scalar(&product.abs()?)
}

fn attention(device: &Device) -> Result<String> {
    let keys = numbers(device, (128, 64), 5)?;
    let scores = (keys.matmul(&keys.t()?)? * 0.125)?;
    let largest = scores.max_keepdim(D::Minus1)?;
    let powers = scores.broadcast_sub(&largest)?.exp()?;
    let weights = powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)?;
    scalar(&weights.matmul(&keys)?.abs()?)
}

fn convolution(device: &Device) -> Result<String> {
    let picture = numbers(device, (64, 64), 6)?.reshape((1, 1, 64, 64))?;
    let filter = numbers(device, (4, 9), 7)?.reshape((4, 1, 3, 3))?;
    scalar(&picture.conv2d(&filter, 1, 1, 1, 1)?.relu()?)
}

fn order(device: &Device) -> Result<String> {
    let rows = numbers(device, (16, 500), 8)?;
    let (_, order) = rows.sort_last_dim(true)?;
    let first = order.narrow(1, 0, 1)?.flatten_all()?.to_vec1::<u32>()?;
    Ok(format!("{first:?}"))
}

fn gathered(device: &Device) -> Result<String> {
    let table = numbers(device, (1000, 32), 9)?;
    let rows = Tensor::new(&[5u32, 999, 0, 77, 5], device)?;
    scalar(&table.index_select(&rows, 0)?.sqr()?)
}

fn training(device: &Device) -> Result<String> {
    let weights = Var::from_tensor(&numbers(device, (32, 8), 10)?)?;
    let data = numbers(device, (256, 32), 11)?;
    let mut losses = Vec::new();
    for _ in 0..5 {
        let loss = data
            .matmul(weights.as_tensor())?
            .tanh()?
            .sqr()?
            .mean_all()?;
        let gradients = loss.backward()?;
        if let Some(gradient) = gradients.get(weights.as_tensor()) {
            weights.set(&(weights.as_tensor() - (gradient * 0.5)?)?)?;
        }
        losses.push(format!("{:.4}", loss.to_scalar::<f32>()?));
    }
    Ok(losses.join(" "))
}

fn ragged(device: &Device) -> Result<String> {
    let mut total = 0.0;
    for turn in 1..200usize {
        let block = Tensor::ones((turn % 37 + 1, 1000), DType::F32, device)?;
        total += block.sum_all()?.to_scalar::<f32>()?;
    }
    Ok(format!("{total}"))
}

fn refused(device: &Device) -> Result<String> {
    let large = Tensor::zeros((1 << 22, 1 << 18), DType::F32, device);
    let is_refused = large.is_err();
    let after = Tensor::ones(1000, DType::F32, device)?;
    Ok(format!(
        "{is_refused} {}",
        after.sum_all()?.to_scalar::<f32>()?
    ))
}

type CandlePart = fn(&Device) -> Result<String>;

fn main() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let parts: [(&str, CandlePart); 9] = [
        ("product", product),
        ("halves", halves),
        ("attention", attention),
        ("convolution", convolution),
        ("order", order),
        ("gathered", gathered),
        ("training", training),
        ("ragged", ragged),
        ("refused", refused),
    ];
    let mut failed = 0;
    for (name, part) in parts {
        match part(&device) {
            Ok(result) => println!("{name}: {result}"),
            Err(error) => {
                failed += 1;
                let error = error.to_string();
                println!(
                    "{name}: error: {}",
                    error.lines().next().unwrap_or_default()
                );
            }
        }
    }
    device.synchronize()?;
    if failed > 0 {
        candle_core::bail!("{failed} parts failed");
    }
    Ok(())
}
