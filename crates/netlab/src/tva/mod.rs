//! The live experiment: TVA against four attacks, on real routers.
#![allow(dead_code)]
mod site;
