//! Grants, the signed permissions that gates check.
