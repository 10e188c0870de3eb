//! [`penstock_fuzz::api`] under libFuzzer: `scripts/fuzz.sh api`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::api::run(data));
