//! The file of the paths from which an operator knows requests to come.

use sluicegate_wire::capability::PathId;
use std::path::Path;

/// Paths in one file.
pub const KNOWN_PATHS_MAX: usize = 200_000;
/// Identifiers of one path.
pub const PATH_LEN_MAX: usize = 5;
/// Largest file read, in bytes.
const FILE_LEN_MAX: u64 = 16 << 20;

/// A path: its identifiers, the most recent first, zeros behind its end.
pub type KnownPath = [PathId; PATH_LEN_MAX];

/// Reads a file with one path a line: identifiers in hexadecimal joined by `/`, the most recent first. `#` starts a
/// comment.
///
/// # Errors
/// A sentence with file, line and what is wrong.
pub fn known_paths(path: &Path) -> Result<Vec<KnownPath>, String> {
    let shown = path.display();
    let cannot = |error: std::io::Error| format!("cannot read {shown}: {error}");
    let len = std::fs::metadata(path).map_err(cannot)?.len();
    if len > FILE_LEN_MAX {
        return Err(format!("{shown} has {len} bytes, at most {FILE_LEN_MAX} are read"));
    }
    let text = std::fs::read_to_string(path).map_err(cannot)?;
    let mut known = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = || format!("{shown}:{}: {line:?} is no path; write it like \"1a2b/00c4\"", index + 1);
        known.push(parse(line).ok_or_else(wrong)?);
        if known.len() > KNOWN_PATHS_MAX {
            return Err(format!("{shown} has more than {KNOWN_PATHS_MAX} paths"));
        }
    }
    Ok(known)
}

fn parse(line: &str) -> Option<KnownPath> {
    let mut path = [PathId::NONE; PATH_LEN_MAX];
    for (index, text) in line.split('/').enumerate() {
        let id = u16::from_str_radix(text, 16).ok().filter(|id| *id != 0)?;
        *path.get_mut(index)? = PathId(id);
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_and_a_wrong_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("paths");
        std::fs::write(&path, "# neighbours\n1a2b\n\n1a2b/00c4 # behind it\n").unwrap();
        let known = known_paths(&path).unwrap();
        let none = PathId::NONE;
        assert_eq!(known[0], [PathId(0x1a2b), none, none, none, none]);
        assert_eq!(known[1], [PathId(0x1a2b), PathId(0xc4), none, none, none]);
        for wrong in ["0000", "xyz", "1a2b 1", "1/2/3/4/5/6", "1//2", "12345"] {
            std::fs::write(&path, format!("1a2b\n{wrong}\n")).unwrap();
            let error = known_paths(&path).unwrap_err();
            assert!(error.contains(":2: ") && error.contains("write it like"), "{error}");
        }
        assert!(known_paths(&dir.path().join("absent")).unwrap_err().contains("cannot read"));
    }
}
