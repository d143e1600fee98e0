#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| spool_fuzz::envelope(input));
