module github.com/vidforge/vidforge/proto

go 1.26
