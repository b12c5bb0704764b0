// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/archive"
	"github.com/penstock/penstock/internal/store/redisadmin"
	"github.com/penstock/penstock/internal/store/redisbackup"
)

// backupBytesMax bounds a backup that is read from S3, and the one call that writes it there.
const backupBytesMax = 5 << 30

// backupFlags say where a backup is.
type backupFlags struct {
	redisFlags
	place archive.Place // Endpoint and Region
	file  string
	dry   bool
}

func (f *backupFlags) register(cmd *cobra.Command) {
	f.addFlags(cmd)
	cmd.Flags().StringVar(&f.place.Endpoint, "s3-endpoint", "", "with s3://…, the `URL` of the S3 server (that of AWS)")
	cmd.Flags().StringVar(&f.place.Region, "s3-region", "", "with s3://…, its `REGION`; without it, the server is asked")
}

// backupFlags.args reads the only argument.
func (f *backupFlags) args(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return fmt.Errorf("%s takes one FILE; write penstock redis %s FILE --redis URL", cmd.Name(), cmd.Name())
	}
	f.file = args[0]
	if _, _, ok := f.object(); !ok && (f.place.Endpoint != "" || f.place.Region != "") {
		return errors.New("--s3-endpoint and --s3-region go with a file s3://BUCKET/KEY; leave them out")
	}
	return nil
}

// backupFlags.object returns the place of an object in S3. The result ok is false for a file.
func (f *backupFlags) object() (place archive.Place, key string, ok bool) {
	rest, ok := strings.CutPrefix(f.file, "s3://")
	bucket, key, _ := strings.Cut(rest, "/")
	place = f.place
	place.URL = "s3://" + bucket
	return place, key, ok
}

// backupFlags.bucket opens the bucket of an object.
func (f *backupFlags) bucket() (bucket *archive.Bucket, key string, err error) {
	place, key, _ := f.object()
	if key == "" || strings.HasSuffix(key, "/") {
		return nil, "", fmt.Errorf("%q names no object: write s3://BUCKET/KEY, with the date in the KEY, because an object is overwritten", f.file)
	}
	bucket, err = archive.OpenBucket(place)
	return bucket, key, err
}

func newRedisBackup() *cobra.Command {
	f := new(backupFlags)
	cmd := &cobra.Command{
		Use:   "backup FILE --redis URL",
		Short: "Write all counters to a file",
		Long: "Write all counters, penalties and receipts to a file, to - (standard output), or to s3://BUCKET/KEY with the keys of\n" +
			"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, of ~/.aws/credentials, or of the machine's role. Requests go on meanwhile.\n" +
			"A file is complete or not there. Records of clients and keys are not in it: see penstock client export.",
		Example: "  penstock redis backup counters.txt --redis redis://localhost:6379",
		Args:    f.args,
		RunE: f.runWithDeployment(func(ctx context.Context, cmd *cobra.Command, servers *redisadmin.Deployment) (bool, error) {
			return true, f.write(ctx, cmd, servers)
		}),
	}
	f.register(cmd)
	return cmd
}

// backupFlags.write writes the backup to the place that the argument names.
func (f *backupFlags) write(ctx context.Context, cmd *cobra.Command, servers *redisadmin.Deployment) error {
	if f.file == "-" {
		written, err := redisbackup.Write(ctx, servers, cmd.OutOrStdout())
		if err == nil {
			_, err = fmt.Fprintln(cmd.ErrOrStderr(), written)
		}
		return err
	}
	dir := filepath.Dir(f.file)
	if _, _, ok := f.object(); ok {
		if _, _, err := f.bucket(); err != nil {
			return err
		}
		dir = ""
	}
	file, err := os.CreateTemp(dir, ".penstock-backup-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) //nolint:errcheck // a complete backup has another name by then
	defer file.Close()           //nolint:errcheck // keep has closed it
	written, err := redisbackup.Write(ctx, servers, file)
	if err == nil {
		err = f.keep(ctx, file)
	}
	if err == nil {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), written)
	}
	return err
}

// backupFlags.keep gives a complete file its name, or sends it to S3.
func (f *backupFlags) keep(ctx context.Context, file *os.File) error {
	if _, _, ok := f.object(); !ok {
		if err := file.Sync(); err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
		return os.Rename(file.Name(), f.file)
	}
	bucket, key, err := f.bucket()
	if err != nil {
		return err
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err == nil && size > backupBytesMax {
		err = fmt.Errorf("the backup has %d bytes, and an object that is written at once at most %d: write it to a file", size, backupBytesMax)
	}
	if err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return bucket.Put(ctx, key, file, size)
}

func newRedisRestore() *cobra.Command {
	f := new(backupFlags)
	cmd := &cobra.Command{
		Use:   "restore FILE --redis URL",
		Short: "Merge the counters of a backup into Redis; the greater use wins",
		Long: "Merge the counters of a backup into Redis, while requests go on. Each counter keeps the greater use of the two, so no\n" +
			"client is given anything back; penalties stay. Nothing is written if a byte of the file is not as it was written. An\n" +
			"interrupted restore can be repeated. FILE may be s3://BUCKET/KEY. --dry-run prints what would change.",
		Example: "  penstock redis restore counters.txt --redis redis://localhost:6379",
		Args:    f.args,
		RunE: f.runWithDeployment(func(ctx context.Context, cmd *cobra.Command, servers *redisadmin.Deployment) (bool, error) {
			return true, f.restore(ctx, cmd.OutOrStdout(), servers)
		}),
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.dry, "dry-run", false, "write nothing, print what a restore would do")
	return cmd
}

func (f *backupFlags) restore(ctx context.Context, out io.Writer, servers *redisadmin.Deployment) error {
	file, done, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	restored, err := redisbackup.Restore(ctx, servers, file, f.dry)
	if err != nil {
		return fmt.Errorf("restore %s: %w", f.file, err)
	}
	what := "restored"
	if f.dry {
		what = "would restore"
	}
	_, err = fmt.Fprintf(out, "%s the backup of %s: %s\n", what, restored.Made.Format(time.RFC3339), restored)
	return err
}

// backupFlags.open opens the backup. A backup in S3 is copied first, because it is read twice.
func (f *backupFlags) open(ctx context.Context) (file *os.File, done func(), err error) {
	if f.file == "-" {
		return nil, nil, errors.New("restore reads the backup twice, first to check it: write it to a FILE, and name that")
	}
	if _, _, ok := f.object(); !ok {
		file, err = os.Open(f.file)
		return file, func() { _ = file.Close() }, err
	}
	bucket, key, err := f.bucket()
	if err != nil {
		return nil, nil, err
	}
	if file, err = os.CreateTemp("", "penstock-restore-*"); err != nil {
		return nil, nil, err
	}
	done = func() {
		_ = file.Close()
		_ = os.Remove(file.Name())
	}
	if err := bucket.Get(ctx, key, backupBytesMax, file); err != nil {
		done()
		return nil, nil, err
	}
	return file, done, nil
}
