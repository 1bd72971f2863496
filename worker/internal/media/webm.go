package media

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
)

// IDs of Matroska elements (RFC 9559, section 5).
const (
	idSegment = 0x18538067
	idCluster = 0x1F43B675
	idCues    = 0x1C53BB6B
)

// cuesFirst reports whether a WebM file's index comes before its first frames.
func cuesFirst(r io.ReaderAt, size int64) (bool, error) {
	for at, n := int64(0), 0; at < size && n < maxBoxes; n++ {
		id, length, head, err := element(r, at)
		if err != nil {
			return false, err
		}
		switch id {
		case idCues:
			return true, nil
		case idCluster:
			return false, nil
		case idSegment: // its content follows
			at += head
		default:
			at += head + length
		}
	}
	return false, nil
}

// element reads the head of an EBML element (RFC 8794, sections 4 and 5): its
// id, the length of its content and of the head.
func element(r io.ReaderAt, at int64) (id uint64, length, head int64, err error) {
	var b [12]byte // an id has up to 4 bytes, a length up to 8
	n, err := r.ReadAt(b[:], at)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, 0, fmt.Errorf("read file: %w", err)
	}
	idLength := bits.LeadingZeros8(b[0]) + 1
	if idLength > 4 || n <= idLength {
		return 0, 0, 0, errors.New("not an EBML element")
	}
	sizeLength := bits.LeadingZeros8(b[idLength]) + 1
	if sizeLength > 8 || n < idLength+sizeLength {
		return 0, 0, 0, errors.New("not an EBML element")
	}
	for _, c := range b[:idLength] {
		id = id<<8 | uint64(c)
	}
	var v [8]byte
	copy(v[8-sizeLength:], b[idLength:idLength+sizeLength])
	v[8-sizeLength] &^= 0x80 >> (sizeLength - 1)
	u := binary.BigEndian.Uint64(v[:])
	return id, int64(u), int64(idLength + sizeLength), nil //nolint:gosec // of 56 bits
}

// opusRate is the rate that Opus counts samples in, whatever it decodes to
// (RFC 7845, section 4).
const opusRate = 48000

// opusPreSkip reads from an Ogg Opus file how many samples a decoder drops at
// its start (RFC 7845, section 5.1: the header is alone on the first page).
func opusPreSkip(path string) (uint16, error) {
	f, _, err := openFile(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	head := make([]byte, 512)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("read file: %w", err)
	}
	i := bytes.Index(head[:n], []byte("OpusHead"))
	if i < 0 || i+12 > n {
		return 0, errors.New("not an Ogg Opus file")
	}
	return binary.LittleEndian.Uint16(head[i+10:]), nil
}
