//! Arrays on the host, over which references loop by indices.

use fercuda_tensor::Dtype;

/// Elements of an array in order, and its shape.
#[derive(Clone, Debug)]
pub struct HostArray {
    /// Their type.
    pub dtype: Dtype,
    /// The shape.
    pub shape: Vec<u64>,
    /// The elements.
    pub values: Vec<f64>,
}

/// All indices of a shape, in order.
pub(crate) fn indices(shape: &[u64]) -> Vec<Vec<u64>> {
    let mut all = vec![Vec::new()];
    for extent in shape {
        let longer = all.iter().flat_map(|index: &Vec<u64>| {
            (0..*extent).map(|n| {
                let mut index = index.clone();
                index.push(n);
                index
            })
        });
        all = longer.collect();
    }
    all
}

impl HostArray {
    /// The element at an index of a shape that this is broadcast to.
    pub(crate) fn at(&self, index: &[u64]) -> f64 {
        let own = &index[index.len() - self.shape.len()..];
        let place = self.shape.iter().zip(own).fold(0, |place, (extent, at)| {
            place * extent + if *extent == 1 { 0 } else { *at }
        });
        self.values[place as usize]
    }
}
