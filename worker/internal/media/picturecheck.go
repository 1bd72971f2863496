package media

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// errAnimated refuses what would move: a watermark stands still, and which of
// the pictures was meant nobody can tell.
var errAnimated = unsupported("The picture is animated; a watermark stands still. Upload a still PNG, JPEG or WebP picture.")

// checkPicture looks through a picture's structure, as far as its decoder would
// be content with less: a PNG that holds another picture than its head says, and
// animations, of which a decoder may show the first picture or none.
func checkPicture(r io.Reader, kind string) error {
	in := bufio.NewReader(r)
	switch kind {
	case picturePNG:
		return checkPNG(in)
	case pictureJPEG:
		return checkJPEG(in)
	case pictureWebP:
		return checkWebP(in)
	}
	return nil
}

// maxChunk bounds the chunks of a PNG, as the format itself does.
const maxChunk = 1<<31 - 1

// checkPNG reads every chunk and the packed pixels, of which it keeps nothing.
// https://www.w3.org/TR/png-3/
func checkPNG(in *bufio.Reader) error {
	if _, err := in.Discard(8); err != nil {
		return fmt.Errorf("signature: %w", err)
	}
	pixels := &idat{in: in}
	var want int64
	for first := true; ; first = false {
		n, kind, err := chunkHead(in)
		if err != nil {
			return err
		}
		switch {
		case first != (kind == "IHDR"):
			return errors.New("the head is not the first chunk")
		case kind == "acTL":
			return errAnimated
		case kind == "IHDR":
			head, err := readChunk(in, n, kind)
			if err != nil {
				return err
			}
			if want, err = packedSize(head); err != nil {
				return err
			}
		case kind == "IDAT" && pixels.left == 0 && pixels.next == "":
			pixels.begin(n)
			if err := pixels.inflate(want); err != nil {
				return err
			}
			continue // with the chunk after the last of them, which inflate found
		case kind == "IEND":
			if pixels.next == "" {
				return errors.New("no pixels")
			}
			_, err := readChunk(in, n, kind)
			return err
		default:
			if err := skipChunk(in, n, kind); err != nil {
				return err
			}
		}
	}
}

func chunkHead(in *bufio.Reader) (n uint32, kind string, err error) {
	head, err := in.Peek(8)
	if err != nil {
		return 0, "", fmt.Errorf("chunk: %w", err)
	}
	n, kind = binary.BigEndian.Uint32(head), string(head[4:])
	if n > maxChunk {
		return 0, "", fmt.Errorf("chunk %q of %d bytes", kind, n)
	}
	_, err = in.Discard(8)
	return n, kind, err //nolint:wrapcheck // of bytes that were there
}

// readChunk reads a short chunk and compares its checksum.
func readChunk(in *bufio.Reader, n uint32, kind string) ([]byte, error) {
	if n > 1<<10 {
		return nil, fmt.Errorf("chunk %s of %d bytes", kind, n)
	}
	var b bytes.Buffer
	if err := copyChunk(&b, in, n, kind); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func skipChunk(in *bufio.Reader, n uint32, kind string) error {
	return copyChunk(io.Discard, in, n, kind)
}

func copyChunk(w io.Writer, in *bufio.Reader, n uint32, kind string) error {
	sum := crc32.NewIEEE()
	_, _ = io.WriteString(sum, kind) // never fails
	if _, err := io.CopyN(io.MultiWriter(w, sum), in, int64(n)); err != nil {
		return fmt.Errorf("chunk %s: %w", kind, err)
	}
	return compareSum(in, sum.Sum32(), kind)
}

func compareSum(in *bufio.Reader, sum uint32, kind string) error {
	var want [4]byte
	if _, err := io.ReadFull(in, want[:]); err != nil {
		return fmt.Errorf("checksum of %s: %w", kind, err)
	}
	if binary.BigEndian.Uint32(want[:]) != sum {
		return fmt.Errorf("checksum of %s is wrong", kind)
	}
	return nil
}

// packedSize is how many bytes the pixels of a PNG have, with a filter byte for
// each row, after they were inflated.
func packedSize(head []byte) (int64, error) {
	if len(head) != 13 {
		return 0, errors.New("malformed head")
	}
	w, h := int64(binary.BigEndian.Uint32(head)), int64(binary.BigEndian.Uint32(head[4:]))
	samples := map[byte]int64{0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[head[9]]
	bits := samples * int64(head[8])
	if w <= 0 || h <= 0 || w > 1<<20 || h > 1<<20 || bits == 0 || bits > 64 {
		return 0, errors.New("malformed head")
	}
	pass := func(w, h int64) int64 {
		if w <= 0 || h <= 0 {
			return 0
		}
		return h * (1 + (w*bits+7)/8)
	}
	if head[12] == 0 {
		return pass(w, h), nil
	}
	var sum int64
	for _, p := range [][4]int64{{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}} { // Adam7
		sum += pass((w-p[0]+p[2]-1)/p[2], (h-p[1]+p[3]-1)/p[3])
	}
	return sum, nil
}

// idat reads the data of consecutive IDAT chunks as one stream.
type idat struct {
	in   *bufio.Reader
	left uint32
	sum  uint32
	next string // what came after them
}

func (d *idat) begin(n uint32) {
	d.left, d.sum = n, crc32.ChecksumIEEE([]byte("IDAT"))
}

func (d *idat) Read(p []byte) (int, error) {
	for d.left == 0 {
		if d.next != "" {
			return 0, io.EOF
		}
		if err := compareSum(d.in, d.sum, "IDAT"); err != nil {
			return 0, err
		}
		head, err := d.in.Peek(8)
		if err != nil {
			return 0, fmt.Errorf("chunk: %w", err)
		}
		if d.next = string(head[4:]); d.next != "IDAT" {
			return 0, io.EOF
		}
		n, _, err := chunkHead(d.in)
		if err != nil {
			return 0, err
		}
		d.next = ""
		d.begin(n)
	}
	n, err := d.in.Read(p[:min(len(p), int(d.left))])
	d.left -= uint32(n) //nolint:gosec // at most left
	d.sum = crc32.Update(d.sum, crc32.IEEETable, p[:n])
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// inflate counts the pixels and reads on to the end of the chunks.
func (d *idat) inflate(want int64) error {
	z, err := zlib.NewReader(d)
	if err != nil {
		return fmt.Errorf("pixels: %w", err)
	}
	n, err := io.Copy(io.Discard, io.LimitReader(z, want+1))
	if err != nil {
		return fmt.Errorf("pixels: %w", err)
	}
	if n != want {
		return fmt.Errorf("the pixels are not those of the size that the head says: %d bytes, not %d", n, want)
	}
	if _, err := io.Copy(io.Discard, d); err != nil {
		return fmt.Errorf("pixels: %w", err)
	}
	return nil
}

// checkJPEG reads the segments up to the end of the picture; what some cameras
// put behind it is of no concern. ITU-T T.81, annex B.
func checkJPEG(in *bufio.Reader) error {
	const (
		end  = 0xd9
		scan = 0xda
	)
	kind, err := jpegMarker(in)
	for err == nil && kind != end {
		if kind == 0x01 || kind >= 0xd0 && kind <= 0xd8 { // without content
			kind, err = jpegMarker(in)
			continue
		}
		var n [2]byte
		if _, err := io.ReadFull(in, n[:]); err != nil {
			return fmt.Errorf("segment: %w", err)
		}
		if _, err := in.Discard(max(0, int(binary.BigEndian.Uint16(n[:]))-2)); err != nil {
			return fmt.Errorf("segment: %w", err)
		}
		if kind == scan {
			kind, err = skipScan(in)
		} else {
			kind, err = jpegMarker(in)
		}
	}
	return err
}

// jpegMarker reads a marker, before which any number of 0xff may stand.
func jpegMarker(in *bufio.Reader) (byte, error) {
	b, err := in.ReadByte()
	if err == nil && b != 0xff {
		return 0, errors.New("no marker where one must be")
	}
	for err == nil && b == 0xff {
		b, err = in.ReadByte()
	}
	if err != nil {
		return 0, fmt.Errorf("marker: %w", err)
	}
	return b, nil
}

// skipScan reads the data of a scan and the marker that ends it: in the data
// there stands 0 or the number of a restart after 0xff.
func skipScan(in *bufio.Reader) (byte, error) {
	for before := byte(0); ; {
		b, err := in.ReadByte()
		if err != nil {
			return 0, fmt.Errorf("scan: %w", err)
		}
		if before == 0xff && b != 0 && b != 0xff && (b < 0xd0 || b > 0xd7) {
			return b, nil
		}
		before = b
	}
}

// checkWebP reads the chunks of a WebP.
// https://developers.google.com/speed/webp/docs/riff_container
func checkWebP(in *bufio.Reader) error {
	var head [12]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return fmt.Errorf("head: %w", err)
	}
	left := int64(binary.LittleEndian.Uint32(head[4:])) - 4
	for left > 0 {
		var chunk [8]byte
		if _, err := io.ReadFull(in, chunk[:]); err != nil {
			return fmt.Errorf("chunk: %w", err)
		}
		if kind := string(chunk[:4]); kind == "ANIM" || kind == "ANMF" {
			return errAnimated
		}
		n := int64(binary.LittleEndian.Uint32(chunk[4:]))
		n += n & 1
		if _, err := io.CopyN(io.Discard, in, n); err != nil {
			return fmt.Errorf("chunk %q: %w", chunk[:4], err)
		}
		left -= 8 + n
	}
	if left < -1 { // some do not count the last byte of padding
		return errors.New("the chunks are longer than the file says")
	}
	return nil
}
