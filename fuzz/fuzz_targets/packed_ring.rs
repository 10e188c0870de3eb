//! [`penstock_fuzz::packed_ring`] under libFuzzer: `scripts/fuzz.sh packed_ring`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::packed_ring::run(data));
