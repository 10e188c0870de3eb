//! [`penstock_fuzz::split_ring`] under libFuzzer: `scripts/fuzz.sh split_ring`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::split_ring::run(data));
