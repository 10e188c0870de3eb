//! [`penstock_fuzz::rules`] under libFuzzer: `scripts/fuzz.sh rules`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::rules::run(data));
