//! Any sequence of steps on the allocator and on the arena agrees with a model.
#![no_main]

#[path = "../src/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    model::replay(input);
});
