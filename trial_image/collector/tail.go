package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"time"
)

// A tail copies a growing file, across rotations.
type tail struct {
	path   string
	file   *os.File // stays open, so that a file that was renamed or deleted is read to its end
	offset int64
	noted  bool
}

func (t *tail) rereads() bool { return true }

func (t *tail) rest() time.Duration { return interval }

func (t *tail) finish(out *printer) { t.poll(out) }

func (t *tail) poll(out *printer) {
	status, err := os.Stat(t.path)
	switch {
	case err != nil:
		t.noteOnce(out, err)
		t.copy(out)
		return
	case !status.Mode().IsRegular():
		if !t.noted {
			t.noted = true
			out.note("%s is not a file", t.path)
		}
		return
	}
	if t.file != nil {
		opened, err := t.file.Stat()
		if err != nil || !os.SameFile(opened, status) {
			t.copy(out)
			t.close(out)
		} else if opened.Size() < t.offset {
			t.close(out)
		}
	}
	if t.file == nil {
		if t.file, err = os.Open(t.path); err != nil {
			t.file = nil
			t.noteOnce(out, err)
			return
		}
	}
	t.copy(out)
}

func (t *tail) copy(out *printer) {
	if t.file == nil {
		return
	}
	data := make([]byte, 32<<10)
	for {
		count, err := t.file.ReadAt(data, t.offset)
		out.write(data[:count])
		t.offset += int64(count)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.noteOnce(out, err)
			}
			return
		}
	}
}

func (t *tail) close(out *printer) {
	t.file.Close()
	t.file, t.offset = nil, 0
	out.endLine()
}

func (t *tail) noteOnce(out *printer, err error) {
	if !t.noted && !errors.Is(err, fs.ErrNotExist) {
		t.noted = true
		out.note("%v", err)
	}
}
