//! A program's `target.toml`: where its source comes from and what of it is built.
//!
//! The file uses a small part of TOML: comments, `key = "text"` and `key = ["text", ..]`, where a
//! text knows the escapes `\"` and `\\`. Everything else is refused, unknown keys too.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Hex digits of a SHA-256 digest.
const DIGEST_DIGITS: usize = 64;

/// What a manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    /// Name of Debian's source package.
    pub(super) package: String,
    /// Its exact version.
    pub(super) version: String,
    /// The Debian release that has it.
    pub(super) suite: String,
    /// The files of the source package; the first is the `.dsc`.
    pub(super) files: Vec<SourceFile>,
    /// Files to compile, from the root of the unpacked source.
    pub(super) sources: Vec<String>,
    /// Folders for `-I`, from the root of the unpacked source.
    pub(super) include: Vec<String>,
    /// `NAME` or `NAME=VALUE` for `-D`.
    pub(super) defines: Vec<String>,
}

/// One file of a source package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceFile {
    /// SHA-256 of its bytes, lowercase hex.
    pub(super) sha256: String,
    /// Its name, without a folder.
    pub(super) name: String,
}

impl Manifest {
    /// Reads and checks the manifest at `path`.
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path)
            .map_err(|source| Error::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|problem| Error::Invalid { path: path.to_owned(), problem })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut entries = entries(text)?;
        let manifest = Self {
            package: one(&mut entries, "package")?,
            version: one(&mut entries, "version")?,
            suite: one(&mut entries, "suite")?,
            files: many(&mut entries, "files")?
                .iter()
                .map(|line| source_file(line))
                .collect::<Result<_, _>>()?,
            sources: many(&mut entries, "sources")?,
            include: many(&mut entries, "include")?,
            defines: many(&mut entries, "defines")?,
        };
        if let Some(key) = entries.keys().next() {
            return Err(format!("unknown key `{key}`"));
        }
        let first = manifest.files.first().map(|file| Path::new(&file.name));
        if first.and_then(Path::extension).is_none_or(|extension| extension != "dsc") {
            return Err("the first of `files` is no .dsc".to_owned());
        }
        if manifest.sources.is_empty() {
            return Err("`sources` is empty".to_owned());
        }
        Ok(manifest)
    }
}

fn source_file(line: &str) -> Result<SourceFile, String> {
    let (sha256, name) =
        line.split_once("  ").ok_or_else(|| format!("`{line}` is not `SHA256  NAME`"))?;
    let hex = |digit: char| digit.is_ascii_digit() || ('a'..='f').contains(&digit);
    if sha256.len() != DIGEST_DIGITS || !sha256.chars().all(hex) {
        return Err(format!("`{sha256}` is no SHA-256 digest"));
    }
    if name.is_empty() || name.starts_with(['.', '-']) || name.contains('/') {
        return Err(format!("`{name}` is no name of a source file"));
    }
    Ok(SourceFile { sha256: sha256.to_owned(), name: name.to_owned() })
}

#[derive(Debug, PartialEq, Eq)]
enum Value {
    One(String),
    Many(Vec<String>),
}

type Entries = BTreeMap<String, Value>;

fn one(entries: &mut Entries, key: &str) -> Result<String, String> {
    match entries.remove(key) {
        Some(Value::One(text)) if !text.is_empty() => Ok(text),
        Some(_) => Err(format!("`{key}` is not one text")),
        None => Err(format!("`{key}` is missing")),
    }
}

fn many(entries: &mut Entries, key: &str) -> Result<Vec<String>, String> {
    match entries.remove(key) {
        Some(Value::Many(texts)) => Ok(texts),
        Some(Value::One(_)) => Err(format!("`{key}` is not a list")),
        None => Err(format!("`{key}` is missing")),
    }
}

fn entries(text: &str) -> Result<Entries, String> {
    let mut entries = Entries::new();
    let mut rest = skip_blank(text);
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=').ok_or("a line is no `key = value`")?;
        let key = key.trim_end();
        if key.is_empty() || !key.chars().all(|letter| letter.is_ascii_lowercase()) {
            return Err(format!("`{key}` is no key"));
        }
        let (value, after) = value(skip_blank(after)).map_err(|what| format!("`{key}`: {what}"))?;
        if entries.insert(key.to_owned(), value).is_some() {
            return Err(format!("`{key}` stands there twice"));
        }
        rest = skip_blank(after);
    }
    Ok(entries)
}

fn value(text: &str) -> Result<(Value, &str), &'static str> {
    let Some(mut rest) = text.strip_prefix('[') else {
        let (one, rest) = quoted(text)?;
        return Ok((Value::One(one), rest));
    };
    let mut texts = Vec::new();
    loop {
        rest = skip_blank(rest);
        if let Some(rest) = rest.strip_prefix(']') {
            return Ok((Value::Many(texts), rest));
        }
        let (one, after) = quoted(rest)?;
        texts.push(one);
        rest = skip_blank(after);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None if rest.starts_with(']') => {}
            None => return Err("a list goes on without a comma"),
        }
    }
}

fn quoted(text: &str) -> Result<(String, &str), &'static str> {
    let inner = text.strip_prefix('"').ok_or("a value is no quoted text")?;
    let mut read = String::new();
    let mut letters = inner.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Ok((read, inner.get(at + 1..).unwrap_or_default())),
            '\\' => match letters.next() {
                Some((_, escaped @ ('"' | '\\'))) => read.push(escaped),
                _ => return Err("an escape other than \\\" and \\\\"),
            },
            '\n' => return Err("a text does not end on its line"),
            _ => read.push(letter),
        }
    }
    Err("a text does not end")
}

fn skip_blank(text: &str) -> &str {
    let mut rest = text.trim_start();
    while rest.starts_with('#') {
        rest = rest.split_once('\n').map_or("", |(_, after)| after).trim_start();
    }
    rest
}

/// Why a manifest is no use.
#[derive(Debug)]
pub(crate) enum Error {
    /// It could not be read; most often the program's name is wrong.
    Unreadable {
        /// The manifest.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It was read and is wrong.
    Invalid {
        /// The manifest.
        path: PathBuf,
        /// The first problem.
        problem: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Invalid { path, problem } => write!(f, "{}: {problem}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "0b0e3aa07c8c063ddf40b082bdf7e37a1562bda40a0ff5272957f3e987e0e54b";

    fn good() -> String {
        format!(
            "# a program\npackage = \"x\"\nversion = \"1-1\" # here\nsuite = \"s\"\n\
             files = [\n  \"{DIGEST}  x_1-1.dsc\",\n]\nsources = [\"a.c\", \"b.c\"]\n\
             include = []\ndefines = [\"V=\\\"1\\\\2\\\"\"]\n"
        )
    }

    #[test]
    fn a_manifest_is_read_with_lists_comments_and_escapes() {
        let manifest = Manifest::parse(&good()).unwrap();
        assert_eq!(manifest.version, "1-1");
        assert_eq!(manifest.files[0].sha256, DIGEST);
        assert_eq!(manifest.sources, ["a.c", "b.c"]);
        assert_eq!(manifest.defines, ["V=\"1\\2\""]);
    }

    #[test]
    fn every_program_of_the_campaign_has_a_valid_manifest() {
        let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../campaign/targets");
        for name in crate::args::TARGETS {
            let manifest = Manifest::read(&targets.join(name).join("target.toml")).unwrap();
            assert_eq!(manifest.package, name);
            let upstream = manifest.files.iter().filter(|file| file.name.contains(".orig."));
            assert_eq!(upstream.count(), 1, "{name}: the digest of upstream's sources");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let changed = |from: &str, to: &str| Manifest::parse(&good().replace(from, to));
        for (from, to, expected) in [
            ("package", "packet", "`package` is missing"),
            ("include = []", "include = []\nextra = []", "unknown key `extra`"),
            ("include = []", "include = []\ninclude = []", "`include` stands there twice"),
            ("include = []", "include = \"\"", "`include` is not a list"),
            ("\"1-1\"", "\"\"", "`version` is not one text"),
            ("\"1-1\"", "1", "`version`: a value is no quoted text"),
            ("\"1-1\"", "\"1-1", "`version`: a text does not end on its line"),
            ("\", \"", "\" \"", "`sources`: a list goes on without a comma"),
            ("x_1-1.dsc", "x.tar", "the first of `files` is no .dsc"),
            ("x_1-1.dsc", "../x.dsc", "`../x.dsc` is no name of a source file"),
            ("0b0e", "0B0E", &format!("`{}` is no SHA-256 digest", DIGEST.replace("0b0e", "0B0E"))),
            ("\\\\2", "\\n", "`defines`: an escape other than \\\" and \\\\"),
        ] {
            assert_eq!(changed(from, to).unwrap_err(), expected, "{from} -> {to}");
        }
    }
}
