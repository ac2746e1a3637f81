//! The errors of glommio and of the standard library in the terms of `device`.

use std::io::{Error, ErrorKind};
use std::path::Path;

use glommio::GlommioError;

use crate::disk::device::{DiskError, DiskErrorKind};

/// The class of an error by its errno, or by its kind where the errno was lost.
pub(super) fn kind_of(error: &Error) -> DiskErrorKind {
    match error.raw_os_error() {
        Some(libc::ENOENT) => DiskErrorKind::NotFound,
        Some(libc::EEXIST) => DiskErrorKind::AlreadyExists,
        Some(libc::ENOSPC | libc::EDQUOT) => DiskErrorKind::NoSpace,
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => DiskErrorKind::Permission,
        Some(_) => DiskErrorKind::Io,
        None => match error.kind() {
            ErrorKind::NotFound => DiskErrorKind::NotFound,
            ErrorKind::AlreadyExists => DiskErrorKind::AlreadyExists,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DiskErrorKind::NoSpace,
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => DiskErrorKind::Permission,
            _ => DiskErrorKind::Io,
        },
    }
}

/// A step of the standard library that failed.
pub(super) fn from_std(op: &'static str, path: &Path, error: &Error) -> DiskError {
    DiskError {
        op,
        path: path.into(),
        kind: kind_of(error),
        detail: error.to_string(),
    }
}

/// A step of glommio that failed. Its own conversion into an I/O error loses the errno, so it is taken out first.
pub(super) fn from_glommio(op: &'static str, path: &Path, error: GlommioError<()>) -> DiskError {
    match error {
        GlommioError::EnhancedIoError { source, .. } | GlommioError::IoError(source) => {
            from_std(op, path, &source)
        }
        other => from_std(op, path, &Error::from(other)),
    }
}

/// A step that broke the contract of `device`.
pub(super) fn misuse(op: &'static str, path: &Path, detail: &str) -> DiskError {
    DiskError {
        op,
        path: path.into(),
        kind: DiskErrorKind::Misuse,
        detail: detail.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_decides_the_class_also_through_glommio() {
        let cases = [
            (libc::ENOENT, DiskErrorKind::NotFound),
            (libc::EEXIST, DiskErrorKind::AlreadyExists),
            (libc::ENOSPC, DiskErrorKind::NoSpace),
            (libc::EDQUOT, DiskErrorKind::NoSpace),
            (libc::EROFS, DiskErrorKind::Permission),
            (libc::EIO, DiskErrorKind::Io),
            (libc::EOPNOTSUPP, DiskErrorKind::Io),
        ];
        for (errno, kind) in cases {
            let error = GlommioError::EnhancedIoError {
                source: Error::from_raw_os_error(errno),
                op: "Writing",
                path: None,
                fd: None,
            };
            assert_eq!(
                from_glommio("write", Path::new("a"), error).kind,
                kind,
                "errno {errno}"
            );
        }
    }
}
