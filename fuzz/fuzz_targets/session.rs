//! A daemon serves a client that sends anything, and another one beside it that must not notice.
#![no_main]

#[path = "../src/session/mod.rs"]
mod session;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    session::replay(input);
});
