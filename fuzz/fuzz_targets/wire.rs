//! Any bytes are a message of the host's protocol or refused.
#![no_main]

#[path = "../src/wire/mod.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    wire::replay(input);
});
