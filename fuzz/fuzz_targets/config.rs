//! [`penstock_fuzz::config`] under libFuzzer: `scripts/fuzz.sh config`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::config::run(data));
