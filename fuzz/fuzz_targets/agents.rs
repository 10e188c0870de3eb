//! [`penstock_fuzz::agents`] under libFuzzer: `scripts/fuzz.sh agents`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::agents::run(data));
