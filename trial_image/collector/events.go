package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	headBytes, tailBytes = 12, 4   // around a record's data
	largestRecord        = 1 << 20 // a scalar's record has less than a hundred bytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// events reads the scalars of a directory of TensorBoard's event files.
type events struct {
	directory string
	names     map[string]bool // tags that need no prefix in a subdirectory
	files     map[string]*eventFile
}

type eventFile struct {
	prefix string
	offset int64
	skipTo int64
	broken bool
}

func newEvents(directory string, names []string) *events {
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	return &events{directory: directory, names: wanted, files: map[string]*eventFile{}}
}

func (e *events) rereads() bool { return true }

func (e *events) rest() time.Duration { return interval }

func (e *events) finish(out *printer) { e.poll(out) }

func (e *events) poll(out *printer) {
	var paths []string
	filepath.WalkDir(e.directory, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.Contains(entry.Name(), "tfevents") {
			paths = append(paths, path)
		}
		return nil
	})
	for _, path := range paths {
		file := e.files[path]
		if file == nil {
			file = &eventFile{}
			if under, err := filepath.Rel(e.directory, filepath.Dir(path)); err == nil && under != "." {
				file.prefix = under + "/"
			}
			e.files[path] = file
		}
		for !file.broken && e.read(path, file, out) {
		}
	}
}

// read reads the next portion of complete records, and returns whether there may be more.
func (e *events) read(path string, file *eventFile, out *printer) bool {
	opened, err := os.Open(path)
	if err != nil {
		return false
	}
	defer opened.Close()
	if file.skipTo > 0 {
		status, err := opened.Stat()
		if err != nil || status.Size() < file.skipTo {
			return false
		}
		file.offset, file.skipTo = file.skipTo, 0
	}
	data := make([]byte, 64<<10)
	count, _ := opened.ReadAt(data, file.offset)
	if count >= headBytes {
		if size := binary.LittleEndian.Uint64(data); size <= largestRecord && int(size)+headBytes+tailBytes > len(data) {
			data = make([]byte, int(size)+headBytes+tailBytes)
			count, _ = opened.ReadAt(data, file.offset)
		}
	}
	data = data[:count]
	at := 0
	for {
		size, ok := e.recordSize(path, file, data, at, out)
		if !ok {
			break
		}
		record := data[at+headBytes : at+headBytes+size]
		crc := binary.LittleEndian.Uint32(data[at+headBytes+size:])
		e.print(path, file, record, crc, out)
		at += headBytes + size + tailBytes
	}
	file.offset += int64(at)
	return at > 0 || file.skipTo > 0
}

func (e *events) recordSize(path string, file *eventFile, data []byte, at int, out *printer) (int, bool) {
	if at+headBytes > len(data) {
		return 0, false
	}
	size := binary.LittleEndian.Uint64(data[at:])
	if masked(data[at:at+8]) != binary.LittleEndian.Uint32(data[at+8:]) {
		file.broken = true
		out.note("%s: a damaged record at byte %d; the rest of the file is not read", path, file.offset+int64(at))
		return 0, false
	}
	if size > largestRecord {
		file.skipTo = file.offset + int64(at) + headBytes + int64(size) + tailBytes
		return 0, false
	}
	if at+headBytes+int(size)+tailBytes > len(data) {
		return 0, false
	}
	return int(size), true
}

func (e *events) print(path string, file *eventFile, record []byte, crc uint32, out *printer) {
	step, values, ok := scalars(record)
	if ok && len(values) == 0 {
		return
	}
	if !ok || masked(record) != crc {
		out.note("%s: a damaged record is skipped", path)
		return
	}
	var line jsonLine
	if step >= 0 {
		line.add("step", strconv.FormatInt(step, 10))
	}
	for _, value := range values {
		tag := value.tag
		if !e.names[tag] {
			tag = file.prefix + tag
		}
		line.add(tag, value.text)
	}
	out.line(line.String())
}

func masked(data []byte) uint32 {
	crc := crc32.Checksum(data, castagnoli)
	return (crc>>15 | crc<<17) + 0xa282ead8
}

// A jsonLine is an object in one line, with its names in order.
type jsonLine struct{ bytes.Buffer }

func (l *jsonLine) add(name, value string) {
	key := quoted(name)
	if l.Len() == 0 {
		l.WriteString("{")
	} else {
		l.Truncate(l.Len() - 1)
		l.WriteString(", ")
	}
	l.WriteString(key + ": " + value + "}")
}

// quoted returns a string in JSON.
func quoted(text string) string {
	data, _ := json.Marshal(text)
	return string(data)
}

// number returns a number in JSON, which has none for NaN and infinities: these are strings. bits: 32 for a float32,
// whose shortest decimal number is 0.9 and not 0.8999999761581421.
func number(value float64, bits int) string {
	switch {
	case math.IsNaN(value):
		return `"nan"`
	case math.IsInf(value, 1):
		return `"inf"`
	case math.IsInf(value, -1):
		return `"-inf"`
	}
	return strconv.FormatFloat(value, 'g', -1, bits)
}
