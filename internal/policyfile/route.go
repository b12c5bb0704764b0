// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"os"
	"path/filepath"
	"strings"
)

// linksMax is the greatest number of symbolic links on the path to a file, the same as in Linux.
const linksMax = 40

// route describes the path to a file: the names and folders to watch for a replacement of the file.
type route struct {
	names   map[string]bool // the file and every symbolic link on its path, each with its real folder
	folders map[string]bool // these real folders
}

func (r *route) watches(name string) bool { return r.names[name] }

// routeTo follows every symbolic link on the path to a file: a link to the file, a link to its
// folder, or a link in the target of either. routeTo stops at the first part that does not exist.
func routeTo(path string) route {
	r := route{names: map[string]bool{}, folders: map[string]bool{}}
	absolute, err := filepath.Abs(path)
	if err != nil {
		absolute = path
	}
	volume := filepath.VolumeName(absolute)
	real := volume + string(filepath.Separator)
	rest := splitPath(absolute[len(volume):])
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		if part == ".." {
			real = filepath.Dir(real)
			continue
		}
		at := filepath.Join(real, part)
		target, err := os.Readlink(at)
		if err != nil { // not a link, or it does not exist
			if len(rest) == 0 {
				r.watchName(real, at)
			}
			real = at
			continue
		}
		if links++; links > linksMax {
			return r
		}
		r.watchName(real, at)
		if filepath.IsAbs(target) {
			volume = filepath.VolumeName(target)
			real, target = volume+string(filepath.Separator), target[len(volume):]
		}
		rest = append(splitPath(target), rest...)
	}
	return r
}

func (r *route) watchName(folder, name string) { r.folders[folder], r.names[name] = true, true }

// splitPath splits a path, and drops empty parts and dots.
func splitPath(path string) (names []string) {
	for _, name := range strings.Split(filepath.ToSlash(path), "/") {
		if name != "" && name != "." {
			names = append(names, name)
		}
	}
	return names
}
