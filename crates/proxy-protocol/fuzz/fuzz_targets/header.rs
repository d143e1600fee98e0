#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| proxy_protocol_fuzz::header(input));
