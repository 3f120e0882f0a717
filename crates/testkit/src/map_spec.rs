//! Tensor maps that a header gives to a kernel as arguments.

/// A tensor map of a header: `map NAME: BUFFER TYPE dims=64,32 strides=128 box=64,8 swizzle=3`.
/// Fields are those of the driver's functions, numbers those of its enumerations; `lower`, `upper`,
/// `channels` and `pixels` make it an im2col map.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MapSpec {
    /// Arguments before it.
    pub position: usize,
    /// The buffer that holds the tensor, one of those arguments.
    pub buffer: String,
    /// The driver's number of the elements' type.
    pub element: u32,
    /// Elements along each dimension.
    pub dims: Vec<u64>,
    /// Bytes between neighbours along each dimension but the first.
    pub strides: Vec<u64>,
    /// Elements of a box along each dimension.
    pub box_dims: Vec<u32>,
    /// Element strides; ones if empty.
    pub steps: Vec<u32>,
    /// Lower corner of the box of pixels.
    pub lower: Vec<i32>,
    /// Upper corner of the box of pixels.
    pub upper: Vec<i32>,
    /// Channels a pixel; 0 if the map is tiled.
    pub channels: u32,
    /// Pixels a column.
    pub pixels: u32,
    /// Interleave.
    pub interleave: u32,
    /// Swizzle.
    pub swizzle: u32,
    /// Fill of elements outside.
    pub fill: u32,
}

fn numbers<T: std::str::FromStr>(text: &str) -> Result<Vec<T>, String> {
    text.split(',')
        .map(|n| n.parse().map_err(|_| format!("`{n}` is no number")))
        .collect()
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

/// The driver's number of a type of elements.
fn element(name: &str) -> Result<u32, String> {
    let names = [
        "u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16",
    ];
    let found = names.iter().position(|n| *n == name);
    let found = found.ok_or_else(|| format!("`{name}` is not one of {}", names.join(", ")))?;
    Ok(found as u32)
}

impl MapSpec {
    /// Reads what follows `map`, with `position` arguments before it.
    ///
    /// # Errors
    /// The word that means nothing.
    pub fn parse(text: &str, position: usize) -> Result<MapSpec, String> {
        let (_, rest) = text.split_once(':').ok_or("expected `map NAME: BUFFER`")?;
        let mut words = rest.split_whitespace();
        let (Some(buffer), Some(kind)) = (words.next(), words.next()) else {
            return Err("a map needs a buffer and a type".to_owned());
        };
        let mut map = MapSpec {
            position,
            buffer: buffer.to_owned(),
            element: element(kind)?,
            ..MapSpec::default()
        };
        for word in words {
            match word.split_once('=') {
                Some(("dims", v)) => map.dims = numbers(v)?,
                Some(("strides", v)) => map.strides = numbers(v)?,
                Some(("box", v)) => map.box_dims = numbers(v)?,
                Some(("steps", v)) => map.steps = numbers(v)?,
                Some(("lower", v)) => map.lower = numbers(v)?,
                Some(("upper", v)) => map.upper = numbers(v)?,
                Some(("channels", v)) => map.channels = number(v)?,
                Some(("pixels", v)) => map.pixels = number(v)?,
                Some(("interleave", v)) => map.interleave = number(v)?,
                Some(("swizzle", v)) => map.swizzle = number(v)?,
                Some(("fill", v)) => map.fill = number(v)?,
                _ => return Err(format!("`{word}` is no field of a map")),
            }
        }
        if map.steps.is_empty() {
            map.steps = vec![1; map.dims.len()];
        }
        let spatial = map.dims.len().saturating_sub(2);
        let fits = map.strides.len() + 1 == map.dims.len()
            && map.steps.len() == map.dims.len()
            && match map.channels {
                0 => map.box_dims.len() == map.dims.len(),
                _ => map.lower.len() == spatial && map.upper.len() == spatial,
            };
        if fits {
            Ok(map)
        } else {
            Err("the fields of a map are of different ranks".to_owned())
        }
    }
}
