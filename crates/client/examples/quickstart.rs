//! Puts tensors into a store and reads them back: one by one, and as one batch.
//!
//! `cargo run -p tensorlease --example quickstart`

use std::{error::Error, sync::Arc};
use tensorlease::{DType, Delivery, Options, Patience, PutItem, ReadItem, ReadRequest, Store, TensorSpec};

/// Samples of one training step.
const SAMPLES: usize = 4;
/// Elements of each.
const TOKENS: u64 = 8192;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options {
        max_bytes: 64 << 20,
        ..Options::default()
    };
    let store = Store::open("embedded://?capacity=64MiB", &options)?;

    // A spec is dtype and shape; tensors of the same one share it.
    let spec = Arc::new(TensorSpec::new(DType::F32, &[TOKENS])?);
    let key = |sample: usize| format!("step0/logprobs/{sample}");
    let items = (0..SAMPLES).map(|sample| PutItem::tensor(key(sample), Arc::clone(&spec), logprobs(sample)));
    store.put(items.collect(), Patience::default())?;
    println!("put {SAMPLES} tensors of {}", spec.words());

    // Each value owns its block of the arena, and gives it back when it is dropped.
    let request = ReadRequest {
        items: (0..SAMPLES)
            .map(|sample| ReadItem::tensor(key(sample), Arc::clone(&spec)))
            .collect(),
        delivery: Some(Delivery::Leased),
        ..ReadRequest::default()
    };
    let output = store.get(request, Patience::default())?;
    for (sample, value) in output.values.iter().enumerate() {
        let bytes = value.buffer.as_deref().ok_or("a tensor with elements has bytes")?;
        println!("{}: {} bytes, first value {}", key(sample), bytes.len(), first(bytes)?);
    }
    println!("held by these values: {} bytes", store.stats().get("leased_bytes"));
    drop(output);
    println!("after they are dropped: {} bytes", store.stats().get("leased_bytes"));

    // The same keys as one tensor of shape (4, 8192): the rows land back to back, nothing is stacked afterwards.
    let request = ReadRequest {
        items: (0..SAMPLES)
            .map(|sample| ReadItem::tensor(key(sample), Arc::clone(&spec)))
            .collect(),
        batches: std::iter::once(0..SAMPLES).collect(),
        ..ReadRequest::default()
    };
    let output = store.get(request, Patience::default())?;
    let batch = output.batches[0].as_deref().ok_or("a batch with elements has bytes")?;
    for (sample, row) in batch.chunks(usize::try_from(spec.bytes())?).enumerate() {
        println!("row {sample}: first value {}", first(row)?);
    }
    println!(
        "leased {}, copied {}, registrations of reads {}",
        store.stats().get("leased_reads"),
        store.stats().get("copied_reads"),
        store.stats().get("hot_path_register_calls")
    );
    store.close(Patience::default())?;
    Ok(())
}

/// What a rollout would have computed.
fn logprobs(sample: usize) -> Vec<u8> {
    let value = -0.5 - f32::from(u8::try_from(sample).unwrap_or(u8::MAX));
    (0..TOKENS).flat_map(|_| value.to_le_bytes()).collect()
}

fn first(bytes: &[u8]) -> Result<f32, Box<dyn Error>> {
    let bytes = bytes.first_chunk::<4>().ok_or("at least one element")?;
    Ok(f32::from_le_bytes(*bytes))
}
