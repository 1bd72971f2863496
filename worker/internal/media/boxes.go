package media

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/vidforge/vidforge/pkg/render"
)

// A reader of ISO base media boxes (ISO/IEC 14496-12), just far enough to tell
// encrypted tracks (ISO/IEC 23001-7) and the order of the top-level boxes.
// ffprobe shows neither.

const (
	// maxBoxes bounds how many boxes of a file are looked at.
	maxBoxes    = 20000
	maxBoxDepth = 8
)

var errBoxes = errors.New("too many boxes")

type boxReader struct {
	r    io.ReaderAt
	left int // boxes that may still be read
}

// walk calls fn for each box in [from, to) with the bounds of its content.
// Damage ends the walk without an error: judging the file is ffmpeg's job.
func (b *boxReader) walk(from, to int64, fn func(kind string, from, to int64) error) error {
	var h [16]byte
	for from+8 <= to {
		if b.left--; b.left < 0 {
			return errBoxes
		}
		if _, err := b.r.ReadAt(h[:8], from); err != nil {
			return nil //nolint:nilerr // cut off
		}
		size, head := int64(binary.BigEndian.Uint32(h[:4])), int64(8)
		switch size {
		case 0: // to the end of the file
			size = to - from
		case 1:
			if _, err := b.r.ReadAt(h[8:], from+8); err != nil {
				return nil //nolint:nilerr // cut off
			}
			large := binary.BigEndian.Uint64(h[8:])
			if large > 1<<62 {
				return nil
			}
			size, head = int64(large), 16
		}
		if size < head {
			return nil
		}
		if err := fn(string(h[4:8]), from+head, min(from+size, to)); err != nil {
			return err
		}
		from += size
	}
	return nil
}

// encrypted reports whether a track of the file is encrypted: a sample entry
// named so, or one with protection information.
func (b *boxReader) encrypted(from, to int64, depth int) (found bool, err error) {
	err = b.walk(from, to, func(kind string, from, to int64) error {
		if found || depth >= maxBoxDepth {
			return nil
		}
		switch kind {
		case "moov", "trak", "mdia", "minf", "stbl":
			inner, err := b.encrypted(from, to, depth+1)
			found = found || inner
			return err
		case "stsd": // version, flags and a count precede the sample entries
			return b.walk(from+8, to, func(kind string, from, to int64) error {
				switch kind {
				case "encv", "enca", "enct", "encs", "drms", "drmi":
					found = true
				}
				for _, head := range []int64{78, 28} { // a visual's and an audio's fixed fields
					err := b.walk(from+head, to, func(kind string, _, _ int64) error {
						found = found || kind == "sinf"
						return nil
					})
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
		return nil
	})
	return found, err
}

// isEncrypted reports whether an ISO media file holds an encrypted track. It
// is false for files of other kinds and for damaged ones.
func isEncrypted(path string) (bool, error) {
	f, size, err := openFile(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	b := boxReader{r: f, left: maxBoxes}
	found, err := b.encrypted(0, size, 0)
	if errors.Is(err, errBoxes) {
		return found, nil
	}
	return found, err
}

// maxHeaders bounds the headers of an H.264 stream in bytes; they take some 50.
const maxHeaders = 64 << 10

// headers finds the headers of a file's H.264 stream (ISO/IEC 14496-15, the box
// avcC); nil when there is none.
func (b *boxReader) headers(from, to int64, depth int) (found []byte, err error) {
	err = b.walk(from, to, func(kind string, from, to int64) error {
		if found != nil || depth >= maxBoxDepth {
			return nil
		}
		var err error
		switch kind {
		case "moov", "trak", "mdia", "minf", "stbl":
			found, err = b.headers(from, to, depth+1)
		case "stsd":
			found, err = b.headers(from+8, to, depth+1)
		case "avc1":
			found, err = b.headers(from+78, to, depth+1)
		case "avcC":
			if to-from > maxHeaders {
				return errBoxes
			}
			found = make([]byte, to-from)
			if _, err := b.r.ReadAt(found, from); err != nil {
				return fmt.Errorf("read headers: %w", err)
			}
		}
		return err
	})
	return found, err
}

// sameHeaders reports whether the H.264 streams of all files have the same
// headers. Joined, all have those of the first: with others, what follows would
// be decoded to something else, or not at all.
func sameHeaders(paths []string) (bool, error) {
	var first []byte
	for i, path := range paths {
		f, size, err := openFile(path)
		if err != nil {
			return false, err
		}
		b := boxReader{r: f, left: maxBoxes}
		h, err := b.headers(0, size, 0)
		if err = errors.Join(err, f.Close()); err != nil {
			return false, fmt.Errorf("read the headers of a segment: %w", err)
		}
		if i == 0 {
			first = h
		}
		if h == nil || !bytes.Equal(h, first) {
			return false, nil
		}
	}
	return true, nil
}

// startsFast reports whether the index comes before the media data, so that a
// player can start, and jump, before the download ends.
func startsFast(path string, format render.Format) (bool, error) {
	f, size, err := openFile(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if format == render.FormatWebM {
		return cuesFirst(f, size)
	}
	var order []string
	b := boxReader{r: f, left: maxBoxes}
	err = b.walk(0, size, func(kind string, _, _ int64) error {
		if kind == "moov" || kind == "mdat" {
			order = append(order, kind)
		}
		return nil
	})
	return len(order) >= 2 && order[0] == "moov", err
}

func openFile(path string) (*os.File, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, fmt.Errorf("open file: %w", err)
	}
	s, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("stat file: %w", err), f.Close())
	}
	return f, s.Size(), nil
}
