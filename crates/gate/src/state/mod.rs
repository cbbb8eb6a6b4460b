mod checkpoint;
mod journal;
