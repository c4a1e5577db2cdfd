//! Images laid out by hand after the ELF-64 specification; a damaged one is refused, nothing worse.

use super::*;

const FUNCTION: u8 = 0x12;
const OBJECT: u8 = 0x11;
const NO_TYPE: u8 = 0x10;
const LOCAL: u8 = 0x02;

/// File header, three section headers (null, symbols, names), symbols, names. `symbols`: name, info, shndx.
fn image(machine: u16, kind: u16, symbols: &[(&str, u8, u16)]) -> Vec<u8> {
    let mut names = vec![0u8];
    let mut table = vec![0u8; 24];
    for (name, info, section) in symbols {
        let mut symbol = [0u8; 24];
        symbol[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
        symbol[4] = *info;
        symbol[6..8].copy_from_slice(&section.to_le_bytes());
        table.extend(symbol);
        names.extend(name.bytes().chain([0]));
    }
    let (table_at, names_at) = (64 + 3 * 64, 64 + 3 * 64 + table.len());
    let mut file = vec![0u8; 64];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[16..18].copy_from_slice(&kind.to_le_bytes());
    file[18..20].copy_from_slice(&machine.to_le_bytes());
    file[40..48].copy_from_slice(&64u64.to_le_bytes());
    file[58..60].copy_from_slice(&64u16.to_le_bytes());
    file[60..62].copy_from_slice(&3u16.to_le_bytes());
    for (kind, at, bytes, link) in
        [(0u32, 0, 0, 0u32), (2, table_at, table.len(), 2), (3, names_at, names.len(), 0)]
    {
        let mut header = [0u8; 64];
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[24..32].copy_from_slice(&(at as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(bytes as u64).to_le_bytes());
        header[40..44].copy_from_slice(&link.to_le_bytes());
        file.extend(header);
    }
    file.extend(table);
    file.extend(names);
    file
}

fn good() -> Vec<u8> {
    let symbols = [
        ("relaunch", FUNCTION, 5),
        ("counter", OBJECT, 6),
        ("hidden", LOCAL, 5),
        ("cudaGraphLaunch", FUNCTION, 0),
        (".nv.reservedSmem.offset0", NO_TYPE, 0),
    ];
    image(EM_CUDA, 2, &symbols)
}

#[test]
fn functions_and_undefined_names_are_told_apart() {
    let facts = check(&good()).unwrap();
    let names = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(names(&facts.functions), "relaunch");
    assert_eq!(names(&facts.undefined), ".nv.reservedSmem.offset0 cudaGraphLaunch");
}

#[test]
fn what_cannot_be_loaded_says_why() {
    for (bytes, words) in [
        (vec![], "0 bytes that begin with []"),
        (b"not an image at all".to_vec(), "19 bytes that begin with [6e, 6f"),
        (image(62, 2, &[]), "for machine 62"),
        (image(EM_CUDA, 1, &[]), "has not been linked"),
        (image(EM_CUDA, 2, &[("shim_scale", FUNCTION, 0)]), "not supplied by the driver: shim_scale"),
    ] {
        let text = check(&bytes).unwrap_err().to_string();
        assert!(text.contains(words) && text.lines().count() == 1, "{words:?}: {text}");
    }
}

#[test]
fn each_offset_that_points_out_of_the_file_is_refused() {
    let far = u64::MAX - 3;
    // Field (as its place in the file), its new value; section headers begin at 64, 64 bytes each.
    for (name, at, value) in [
        ("e_shoff", 40, far.to_le_bytes().to_vec()),
        ("e_shnum", 60, u16::MAX.to_le_bytes().to_vec()),
        ("e_shentsize", 58, u16::MAX.to_le_bytes().to_vec()),
        ("symbols' offset", 128 + 24, far.to_le_bytes().to_vec()),
        ("symbols' length", 128 + 32, far.to_le_bytes().to_vec()),
        ("link to the names", 128 + 40, 9u32.to_le_bytes().to_vec()),
        ("names' offset", 192 + 24, far.to_le_bytes().to_vec()),
        ("names' length", 192 + 32, 2u64.to_le_bytes().to_vec()),
        ("a symbol's name", 256 + 24, u32::MAX.to_le_bytes().to_vec()),
    ] {
        let mut bytes = good();
        bytes[at..at + value.len()].copy_from_slice(&value);
        assert!(matches!(read(&bytes), Err(ImageError::OutOfBounds { .. })), "{name}: {:?}", read(&bytes));
    }
    let whole = good();
    for len in 0..whole.len() {
        // A file that ends in its last name is still whole up to there; no shorter one is.
        assert!(read(&whole[..len]).is_err(), "{len} of {} bytes", whole.len());
    }
}

/// Splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn fuzz_a_damaged_image_is_read_or_refused_and_never_panics() {
    let whole = good();
    let (mut state, mut refused) = (7, 0);
    for _ in 0..200_000 {
        let mut bytes = whole.clone();
        for _ in 0..=next(&mut state) % 6 {
            let at = next(&mut state) as usize % bytes.len();
            // Whole fields as well as single bytes, and the values at which sums overflow.
            let value = match next(&mut state) % 4 {
                0 => u64::MAX,
                1 => 0,
                2 => next(&mut state) % (2 * whole.len() as u64),
                _ => next(&mut state),
            };
            let width = [1, 2, 4, 8][next(&mut state) as usize % 4].min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        bytes.truncate(bytes.len() - next(&mut state) as usize % 40);
        refused += usize::from(check(&bytes).is_err());
    }
    // Both happen, or it was not much of a test.
    assert!((50_000..200_000).contains(&refused), "{refused}");
}
