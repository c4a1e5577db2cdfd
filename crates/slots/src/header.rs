//! `include/slots.h`: constants of [`crate::layout`] in C, written by `cargo xtask headers` (INV-14).

use crate::layout::{self, Entry, Header, Status, TensorKind};

/// File that holds the constants, from the workspace's root.
pub const PATH: &str = "crates/slots/include/slots.h";

/// The file as it is.
pub const TEXT: &str = include_str!("../include/slots.h");

/// What the file has to be.
pub fn text() -> String {
    let mut text = String::from(
        "/*! Offsets and numbers of requests and answers in slots, as crate `slots` states them; little-endian.\n \
         *\n \
         * Written by `cargo xtask headers`; `cargo xtask headers --check` compares (INV-14).\n \
         */\n\
         #ifndef DB_SLOTS_H\n\
         #define DB_SLOTS_H\n\n",
    );
    let mut define = |name: &str, value: u64| text.push_str(&format!("#define DB_SLOT_{name} {value:#x}u\n"));
    for (prefix, fields, bytes) in
        [("HEADER", Header::FIELDS, Header::BYTES), ("ENTRY", Entry::FIELDS, Entry::BYTES)]
    {
        for (name, offset, _) in fields {
            define(&format!("{prefix}_{}", name.to_uppercase()), *offset as u64);
        }
        define(&format!("{prefix}_BYTES"), bytes as u64);
    }
    let sizes = [
        ("PREFIX_BYTES", layout::PREFIX_BYTES),
        ("MOST_TENSORS", layout::MOST_TENSORS),
        ("ALIGNMENT", layout::ALIGNMENT),
        ("FLAG_BYTES", layout::FLAG_BYTES),
    ];
    sizes.iter().for_each(|(name, value)| define(name, *value as u64));
    define("MAGIC", layout::MAGIC.into());
    define("VERSION", layout::VERSION.into());
    // The low half of the flag of sequence 0.
    define("FLAG_MARK", layout::flag(0));
    Status::ALL.iter().for_each(|(one, name)| define(&format!("STATUS_{name}"), one.number().into()));
    TensorKind::ALL.iter().for_each(|(one, name)| define(&format!("KIND_{name}"), one.number().into()));
    text.push_str("\n#endif /* DB_SLOTS_H */\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_offset() {
        let text = text();
        assert_eq!(TEXT, text, "run `cargo xtask headers`");
        for line in
            ["HEADER_REQUEST_ID 0x8u", "HEADER_BYTES 0x40u", "ENTRY_KIND 0x8u", "STATUS_BAD_SEQUENCE 0x5u"]
        {
            assert!(text.contains(&format!("#define DB_SLOT_{line}\n")), "{line}");
        }
        let defined = text.lines().filter_map(|line| line.strip_prefix("#define DB_SLOT_"));
        let mut names: Vec<&str> = defined.filter_map(|line| line.split(' ').next()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name stands for two numbers");
    }
}
